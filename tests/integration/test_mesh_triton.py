"""The real mesh with a Triton server beside its generator."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from evenmesh import Addresses, Answer, Client, Delta, Done, MeshError
from evenmesh.local_mesh import MeshState, read_running
from evenmesh_generator.triton import shared_memory, stubs
from evenmesh_mesh import GeneratorEngine, MeshSettings, services_with, stop
from evenmesh_studies import demo
from tests.support.detached_mesh import launch_for_tests
from tests.support.triton_server import skip_where_impossible
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

DEMO = "demo"
DEADLINE_S = 300.0
QUESTION = demo.questions()[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Home of that mesh."""
    return tmp_path_factory.mktemp("triton-mesh")


@pytest.fixture(scope="module")
def state(home: Path) -> Iterator[MeshState]:
    """A mesh whose answers Triton computes."""
    skip_where_impossible()
    services = services_with(GeneratorEngine.TRITON)
    lexical = {"EVENMESH_RETRIEVER_ENCODER": ""}
    settings = MeshSettings(
        home=home, port=0, start_s=600, backoff_s=0.2, services=services, environment=lexical
    )
    state = launch_for_tests(settings)
    try:
        with Client(Addresses(**state.addresses)) as client:
            client.ingest(demo.passages(), DEMO)
        yield state
    finally:
        stop(home)


@pytest.fixture
def client(state: MeshState) -> Iterator[Client]:
    with Client(Addresses(**state.addresses), timeout=240) as client:
        yield client


def pid_of(state: MeshState, service: str) -> int:
    pid = state.services[service].pid
    assert pid is not None
    return pid


def runs(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_answer_is_streamed_from_triton(client: Client) -> None:
    events = list(client.ask(QUESTION.question, collection=DEMO))
    deltas = "".join(event.text for event in events if isinstance(event, Delta))
    (answer,) = [event for event in events if isinstance(event, Answer)]
    assert deltas.strip() == answer.text.strip() != ""
    assert answer.engine == "triton"
    assert isinstance(events[-1], Done)


def test_the_generator_itself_loads_no_model(state: MeshState) -> None:
    mapped = Path(f"/proc/{pid_of(state, 'generator')}/maps").read_text()
    assert "libtorch" not in mapped
    (server,) = psutil.Process(pid_of(state, "triton")).children()
    assert len(stubs.of_server(server.pid)) == 2


def test_status_shows_triton(state: MeshState, home: Path) -> None:
    reported = subprocess.run(
        [sys.executable, "-m", "evenmesh", "status", "--json"],
        env=os.environ | {"EVENMESH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    services = {one["service"]: one["health"] for one in json.loads(reported.stdout)["services"]}
    assert services["triton"] == "serving"
    assert reported.returncode == 0


def test_a_server_that_dies_is_started_again_and_answers(
    client: Client, state: MeshState, home: Path
) -> None:
    (server,) = psutil.Process(pid_of(state, "triton")).children()
    server.kill()
    deadline = time.monotonic() + DEADLINE_S
    while (running := read_running(home)) is None or running.services["triton"].restarts == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    generator = running.services["generator"].pid
    meanwhile: set[grpc.StatusCode] = set()
    while True:
        try:
            result = client.answer(QUESTION.question, collection=DEMO)
        except MeshError as error:
            meanwhile.add(error.code)
        else:
            if result.answers:
                break
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert meanwhile <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    running = read_running(home)
    assert running is not None
    assert running.services["generator"].pid == generator, "the generator goes on"


def test_a_killed_supervisor_leaves_neither_processes_nor_shared_memory(tmp_path: Path) -> None:
    skip_where_impossible()
    (tmp_path / "home").mkdir()
    services = tuple(
        service
        for service in services_with(GeneratorEngine.TRITON)
        if service.name in {"triton", "generator"}
    )
    state = launch_for_tests(MeshSettings(home=tmp_path / "home", port=0, start_s=600, services=services))
    try:
        owner = pid_of(state, "triton")
        (server,) = psutil.Process(owner).children()
        pids = [state.pid, owner, server.pid, pid_of(state, "generator"), *stubs.of_server(server.pid)]
        os.kill(state.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(runs, pids)), DEADLINE_S)
        assert list(shared_memory.FOLDER.glob(f"evenmesh-triton-{owner}-*")) == []
    finally:
        stop(tmp_path / "home")
