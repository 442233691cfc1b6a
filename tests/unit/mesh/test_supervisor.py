import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from evenmesh import Addresses, AsyncClient, Health
from evenmesh.local_mesh import MeshState, is_locked, read_running
from evenmesh.wire.security import ChannelSecurityError
from evenmesh_mesh import (
    SERVICES,
    GeneratorEngine,
    Mesh,
    MeshSettings,
    MeshStartError,
    Phase,
    Progress,
    launch,
    services_with,
    stop,
)
from evenmesh_mesh.detached import dump
from evenmesh_mesh.logs import ServiceLog
from evenmesh_mesh.process import ServiceProcess
from tests.unit.mesh.conftest import MakeSettings

DEADLINE_S = 60


ALL = ("orchestrator", "retriever", "reranker", "generator", "evaluator")


async def health_of(state: MeshState) -> dict[str, Health]:
    async with AsyncClient(Addresses(**state.addresses)) as client:
        return {one.service: one.health for one in await client.status() if one.service in state.services}


def pids_of(home: Path) -> dict[str, int]:
    state = read_running(home)
    assert state is not None
    return {name: service.pid for name, service in state.services.items() if service.pid is not None}


def gone(pids: list[int]) -> bool:
    """Whether all of them end in time; zombies of another parent count as ended."""
    _, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=DEADLINE_S
    )
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


async def test_starts_everything_and_leaves_nothing(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings(names=ALL)
    steps: list[Progress] = []

    async with Mesh(settings, steps.append) as mesh:
        state = read_running(settings.home)
        assert state == mesh.state
        assert state is not None
        assert (state.pid, state.ready) == (os.getpid(), True)
        assert await health_of(state) == dict.fromkeys(ALL, Health.SERVING)
        assert Addresses.find(settings.home) == Addresses(**state.addresses)
        pids = list(pids_of(settings.home).values())
        assert len(set(pids)) == 5
        own = os.getpriority(os.PRIO_PROCESS, 0)
        yielding = [name for name, pid in pids_of(settings.home).items() if psutil.Process(pid).nice() > own]
        assert yielding == ["evaluator"]
        # Niceness counts within a session alone where Linux groups processes by session.
        assert {os.getsid(pid) for pid in pids} == {os.getsid(0)}

    assert gone(pids)
    assert not is_locked(settings.home)
    assert list((settings.home / "run").iterdir()) == []
    assert {step.service for step in steps if step.phase is Phase.SERVING} == set(state.services)
    assert [step.service for step in steps if step.phase is Phase.STOPPED][:2] == ["orchestrator", "reranker"]
    assert {path.name for path in settings.logs.iterdir()} == {f"{name}.log" for name in state.services}


async def test_a_crashed_service_comes_back_on_its_port(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()
    served: asyncio.Queue[Progress] = asyncio.Queue()

    async with Mesh(settings, served.put_nowait) as mesh, asyncio.timeout(DEADLINE_S):
        before = mesh.state.services["generator"]
        while not served.empty():
            served.get_nowait()
        for restart in (1, 2):
            pid = mesh.state.services["generator"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            steps = [await served.get() for _ in range(3)]
            assert [step.phase for step in steps] == [Phase.CRASHED, Phase.STARTING, Phase.SERVING]
            # The delay doubles with every crash in a row: 0.05 s, then 0.1 s.
            assert steps[0].detail == f"killed by SIGKILL; starts again in {0.05 * restart:g} s"
        after = mesh.state.services["generator"]
        assert (after.address, after.restarts) == (before.address, 2)
        assert after.pid not in (before.pid, None)
        assert read_running(settings.home) == mesh.state
        assert set((await health_of(mesh.state)).values()) == {Health.SERVING}


async def test_a_second_mesh_says_where_the_first_is(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()

    async with Mesh(settings) as mesh:
        address = mesh.state.addresses["orchestrator"]
        with pytest.raises(MeshStartError) as caught:
            async with Mesh(settings):
                pytest.fail("two meshes under one home")
        assert mesh.state == read_running(settings.home)

    assert f"running already: orchestrator at {address} (pid {os.getpid()})" in str(caught.value)


async def test_a_lock_left_by_the_dead_is_no_obstacle(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()
    run = settings.home / "run"
    run.mkdir(parents=True)
    (run / "mesh.lock").touch()
    (run / "mesh.json").write_text('{"pid": 1, "ready": true, "services": {}}')

    assert read_running(settings.home) is None
    async with Mesh(settings) as mesh:
        assert mesh.state.pid == os.getpid()


async def test_a_taken_port_is_named_before_anything_starts(stand_in_settings: MakeSettings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = stand_in_settings(port=port - 3)  # the generator's is three further

        with pytest.raises(MeshStartError) as caught:
            async with Mesh(settings):
                pytest.fail("two servers on one port")

    assert f"port {port} (generator) is taken by another program" in str(caught.value)
    assert "evenmesh up --port" in str(caught.value)
    assert not (settings.logs / "generator.log").exists()
    assert not is_locked(settings.home)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("refuse", "the generator does not start: EVENMESH_GENERATOR_MODEL='none': there is no such model"),
        ("break", "the generator does not start: RuntimeError: the model is no model"),
    ],
)
async def test_a_service_that_does_not_start_says_why_in_a_line(
    stand_in_settings: MakeSettings, behaviour: str, said: str
) -> None:
    settings = stand_in_settings({"generator": behaviour})

    with pytest.raises(MeshStartError) as caught:
        async with Mesh(settings):
            pytest.fail("started without a generator")

    assert str(caught.value).startswith(said)
    assert str(settings.logs / "generator.log") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not is_locked(settings.home)


async def test_a_service_that_cannot_be_asked_is_not_taken_for_one_that_serves(
    stand_in_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unasked(_: ServiceProcess) -> None:
        raise ChannelSecurityError("EVENMESH_TLS_CA=/none: no such file")

    monkeypatch.setattr(ServiceProcess, "serving", unasked)
    with pytest.raises(MeshStartError, match="cannot be asked how it is: EVENMESH_TLS_CA"):
        async with Mesh(stand_in_settings({})):
            pytest.fail("started without an answer")


async def test_a_service_that_never_serves_is_named(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings({"orchestrator": "never"}, start_s=8.0)

    with pytest.raises(MeshStartError, match=r"not serving after 8 s: .*orchestrator"):
        async with Mesh(settings):
            pytest.fail("started without an orchestrator")


async def test_a_process_that_cannot_be_made_ends_the_start_at_once(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings(start_s=DEADLINE_S)

    def remove_logs(step: Progress) -> None:
        if step.phase is Phase.STARTING:
            shutil.rmtree(settings.logs, ignore_errors=True)

    with pytest.raises(MeshStartError, match=r"the \w+ cannot be started: .*No such file"):
        async with Mesh(settings, remove_logs):
            pytest.fail("started without logs")

    assert not is_locked(settings.home)


async def test_a_process_that_cannot_be_made_again_is_tried_later(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()
    steps: asyncio.Queue[Progress] = asyncio.Queue()

    async with Mesh(settings, steps.put_nowait) as mesh, asyncio.timeout(DEADLINE_S):
        while not steps.empty():
            steps.get_nowait()
        watching = asyncio.create_task(mesh.watch())
        shutil.rmtree(settings.logs)
        pid = mesh.state.services["generator"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while not (await steps.get()).detail.startswith("cannot be started: "):
            assert not watching.done()
        settings.logs.mkdir()
        while (await steps.get()).phase is not Phase.SERVING:
            assert not watching.done()
        assert set((await health_of(mesh.state)).values()) == {Health.SERVING}
        watching.cancel()


async def test_a_service_that_does_not_stop_is_ended(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings({"orchestrator": "stubborn"}, grace_s=0.1)

    async with Mesh(settings):
        pids = list(pids_of(settings.home).values())

    assert gone(pids)


def _collect(pid: int, threads: list[threading.Thread]) -> None:
    """Wait until a process has ended and a thread has collected it, while the event loop does not run."""
    with suppress(ChildProcessError):  # the thread was quicker
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    for thread in threads:
        if "waitpid" in thread.name:
            thread.join()


async def test_a_process_that_has_just_ended_is_killed_without_an_error(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "tool")
    log.begin()
    service = replace(SERVICES[0], module="json.tool")  # ends at once: it has nothing to read
    before = threading.enumerate()
    process = await ServiceProcess.start(service, "127.0.0.1:1", os.environ, log)
    _collect(process.pid, [one for one in threading.enumerate() if one not in before])
    assert process.running
    process.kill()
    assert await process.ended() == 1


async def test_a_home_that_is_no_folder_is_one_line(stand_in_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(MeshStartError) as caught:
        async with Mesh(stand_in_settings(home=tmp_path / "file")):
            pytest.fail("started in a file")

    assert "set EVENMESH_HOME" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_detached_mesh_is_found_and_stopped(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()
    steps: list[Progress] = []

    state = launch(settings, steps.append)
    try:
        assert read_running(settings.home) == state
        assert state.pid != os.getpid()
        assert {step.service for step in steps if step.phase is Phase.SERVING} == set(state.services)
        assert set(asyncio.run(health_of(state)).values()) == {Health.SERVING}
        pids = [state.pid, *pids_of(settings.home).values()]
        with pytest.raises(MeshStartError, match="running already"):
            launch(settings)
    finally:
        stopped = stop(settings.home)

    assert stopped == state
    assert gone(pids)
    assert list((settings.home / "run").iterdir()) == []
    assert stop(settings.home) is None
    written = [path for path in settings.logs.rglob("*") if path.is_file()]
    assert written
    assert {path.stat().st_mode & 0o077 for path in (settings.logs, *written)} == {0}


def test_a_detached_mesh_that_does_not_start_says_why(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings({"generator": "refuse"})

    with pytest.raises(MeshStartError, match="there is no such model"):
        launch(settings)

    assert not is_locked(settings.home)


def test_services_do_not_outlive_a_killed_supervisor(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()
    state = launch(settings)
    pids = list(pids_of(settings.home).values())

    os.kill(state.pid, signal.SIGKILL)

    assert gone([state.pid, *pids])
    assert read_running(settings.home) is None
    again = launch(settings)
    assert again.pid != state.pid
    assert stop(settings.home) == again


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_in_order(stand_in_settings: MakeSettings, number: signal.Signals) -> None:
    settings = stand_in_settings()
    state = launch(settings)
    pids = [state.pid, *pids_of(settings.home).values()]

    os.kill(state.pid, number)

    assert gone(pids)
    assert list((settings.home / "run").iterdir()) == []


def test_a_signal_while_it_starts_leaves_nothing(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings({"orchestrator": "never"})
    with subprocess.Popen(
        [sys.executable, "-m", "evenmesh_mesh", dump(settings)],
        env=os.environ | settings.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as supervisor:
        assert supervisor.stdout is not None
        while "serving" not in supervisor.stdout.readline():
            pass
        pids = list(pids_of(settings.home).values())

        supervisor.send_signal(signal.SIGTERM)

        assert supervisor.wait(DEADLINE_S) == 0
    assert gone(pids)
    assert list((settings.home / "run").iterdir()) == []


def test_settings_travel_to_the_supervisor(stand_in_settings: MakeSettings) -> None:
    from evenmesh_mesh.detached import load

    settings = stand_in_settings(start_s=7.0, backoff_s=0.25)

    assert load(dump(settings)) == replace(settings, environment={})
    assert load(dump(MeshSettings(home=Path("/x")))) == MeshSettings(home=Path("/x"))
    triton = MeshSettings(home=Path("/x"), services=services_with(GeneratorEngine.TRITON))
    assert load(dump(triton)) == triton


def test_a_mesh_of_tests_does_not_outlive_them(stand_in_settings: MakeSettings) -> None:
    settings = stand_in_settings()
    program = (
        "import sys; from evenmesh_mesh.detached import load; from tests.support.detached_mesh import launch_for_tests\n"
        "launch_for_tests(load(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, dump(settings)]
    environment = os.environ | settings.environment
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == b"ready\n"
        state = read_running(settings.home)
        assert state is not None
        pids = [state.pid, *pids_of(settings.home).values()]
        tests.kill()
    assert gone(pids)
