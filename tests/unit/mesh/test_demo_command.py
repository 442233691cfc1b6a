"""The command ``evenmesh demo``."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from evenmesh.addresses import Addresses
from evenmesh.commands import main
from evenmesh.commands.screen import Screen
from evenmesh.local_mesh import MeshState, ServiceState
from evenmesh.services import SERVICES
from evenmesh.types.status import ServiceStatus
from evenmesh.wire.errors import Unauthenticated
from evenmesh_mesh.commands import running
from evenmesh_mesh.signals import StopSignals


def test_an_interrupted_demo_says_so_by_its_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def interrupted(screen: Any, settings: Any, stack: AsyncExitStack) -> None:
        stack.enter_context(StopSignals(lambda: None))
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    monkeypatch.setattr(running, "started", interrupted)

    assert main(["demo", "--home", str(tmp_path)]) == 130


async def test_a_mesh_that_takes_no_demo_corpus_is_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuses(screen: Screen, addresses: Addresses) -> None:
        raise Unauthenticated("NO_KEY", "send a key")

    async def nothing(state: MeshState) -> list[ServiceStatus]:
        return []

    monkeypatch.setattr(running, "ensure_demo", refuses)
    monkeypatch.setattr(running, "inner_services", nothing)
    places = {name: ServiceState("127.0.0.1:1", None, 0) for name in SERVICES}
    await running._welcome(Screen(), MeshState(1, services=places), demo=True)
    assert "the mesh is up, without the demo corpus: send a key; set EVENMESH_API_KEY" in " ".join(
        capsys.readouterr().err.split()
    )
