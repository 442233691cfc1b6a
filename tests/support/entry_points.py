"""Commands that distributions bring to the command line."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

import evenmesh.commands


def bring(monkeypatch: pytest.MonkeyPatch, *loads: Callable[[], object]) -> None:
    """Have these entry points bring commands, and no others."""
    points = [SimpleNamespace(load=load) for load in loads]
    monkeypatch.setattr(evenmesh.commands, "entry_points", lambda *, group: points if group else [])
