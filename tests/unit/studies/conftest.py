"""What tests of studies share."""

import pytest

from evenmesh import long_runs


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long runs ask again at once."""
    monkeypatch.setattr(long_runs, "_FIRST_PAUSE_S", 0.001)
