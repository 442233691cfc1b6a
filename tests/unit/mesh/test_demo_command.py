"""The command ``evenmesh demo``."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from evenmesh.commands import main
from evenmesh_mesh.commands import running
from evenmesh_mesh.signals import StopSignals


def test_an_interrupted_demo_says_so_by_its_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def interrupted(screen: Any, settings: Any, stack: AsyncExitStack) -> None:
        stack.enter_context(StopSignals(lambda: None))
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    monkeypatch.setattr(running, "started", interrupted)

    assert main(["demo", "--home", str(tmp_path)]) == 130
