import os
import threading
from pathlib import Path

import pytest

from evenmesh.addresses import Addresses
from evenmesh.local_mesh import LocalMeshError, MeshState, ServiceState, is_locked, read_running
from evenmesh_mesh.lock import LockHeldError, MeshLock

STATE = MeshState(pid=os.getpid(), ready=True, services={"retriever": ServiceState("127.0.0.1:7071", 12, 3)})


def test_what_the_holder_writes_is_read_by_others(tmp_path: Path) -> None:
    with MeshLock(tmp_path) as lock:
        lock.write(STATE)

        assert read_running(tmp_path) == STATE
        assert STATE.addresses == {"retriever": "127.0.0.1:7071"}

    assert read_running(tmp_path) is None
    assert list((tmp_path / "run").iterdir()) == []


def test_a_second_holder_learns_of_the_first(tmp_path: Path) -> None:
    with MeshLock(tmp_path) as lock:
        lock.write(STATE)
        with pytest.raises(LockHeldError) as caught, MeshLock(tmp_path):
            pytest.fail("two holders")

        assert caught.value.state == STATE
        assert is_locked(tmp_path)


def test_looking_never_keeps_a_holder_out(tmp_path: Path) -> None:
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            is_locked(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            with MeshLock(tmp_path):
                assert (tmp_path / "run" / "mesh.lock").exists()
    finally:
        done.set()
        for looker in lookers:
            looker.join()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "services": {"a": {"x": 1}}}'])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    with MeshLock(tmp_path):
        (tmp_path / "run" / "mesh.json").write_text(content)

        assert read_running(tmp_path) is None


def test_nothing_runs_under_a_home_that_is_not_there(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "none")
    assert read_running(tmp_path / "none") is None


def test_a_home_that_cannot_be_looked_at_is_no_home_without_a_mesh(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "run")  # a loop, which even root cannot open
    with pytest.raises(LocalMeshError, match="cannot see whether a mesh runs under"):
        read_running(tmp_path)
    assert read_running(tmp_path / "none") is None


def test_a_client_needs_no_home_that_can_be_looked_at_but_says_whose_ports_it_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "run")
    assert Addresses.find(tmp_path, orchestrator="mesh.example:1") == Addresses("mesh.example:1")
    assert not caplog.records
    assert Addresses.find(tmp_path) == Addresses()
    (warning,) = caplog.messages
    assert warning.startswith(f"cannot see whether a mesh runs under {tmp_path}: ")
    assert warning.endswith(": calling the default ports of this machine")
