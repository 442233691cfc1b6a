"""The command ``evenmesh console``, and what the demo says of it at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh.local_mesh import MeshState, ServiceState
from evenmesh_mesh.commands.demo import _in_a_browser
from evenmesh_mesh.lock import MeshLock
from evenmesh_mesh.services import GATEWAY

ORCHESTRATOR = {"orchestrator": ServiceState("127.0.0.1:7070", 2, 0)}
WITH_GATEWAY = {**ORCHESTRATOR, GATEWAY.name: ServiceState("127.0.0.1:7080", 3, 0)}
URL = "http://127.0.0.1:7080/console/"


def test_the_address_of_the_running_mesh_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MeshLock(tmp_path) as lock:
        lock.write(MeshState(1, ready=True, services=WITH_GATEWAY))
        assert main(["console", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{URL}\n"


def test_without_a_mesh_or_its_gateway_the_way_to_one_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", "--home", str(tmp_path)]) == 1
    assert "evenmesh up" in capsys.readouterr().err
    with MeshLock(tmp_path) as lock:
        lock.write(MeshState(1, ready=True, services=ORCHESTRATOR))
        assert main(["console", "--home", str(tmp_path)]) == 1
    assert "--no-gateway" in capsys.readouterr().err


def test_the_demo_ends_with_the_address_or_how_to_get_it() -> None:
    running = MeshState(1, ready=True, services=WITH_GATEWAY)
    assert _in_a_browser(running) == f"Turn the dial yourself: {URL}"
    for without in (None, MeshState(1, ready=True, services=ORCHESTRATOR)):
        assert "evenmesh console" in _in_a_browser(without)
