"""``evenmesh feedback`` as a user calls it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evenmesh import Client
from evenmesh.commands import main
from evenmesh.types.feedback import StoredFeedback


@pytest.mark.parametrize(
    ("said", "hour"), [("T12:00:00", 12), ("T12:00:00Z", 12), ("T12:00:00+02:00", 12 - 2), ("", 0)]
)
def test_a_time_with_a_zone_is_meant_so_and_one_without_is_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, hour: int
) -> None:
    asked: list[Any] = []

    def nothing(mesh: Client, *, since: datetime, **_: object) -> Iterator[StoredFeedback]:
        asked.append(since)
        return iter(())

    monkeypatch.setattr(Client, "export_feedback", nothing)
    assert main(["feedback", "export", str(tmp_path / "out.parquet"), "--since", f"2026-11-22{said}"]) == 0
    assert asked == [datetime(2026, 11, 22, hour, tzinfo=UTC)]
