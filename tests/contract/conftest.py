"""What contract tests of several stores share."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.support.postgres import empty_database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database of the kind, empty."""
    return empty_database(request, request.param, tmp_path)
