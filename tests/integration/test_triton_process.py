"""How a Triton server starts, ends and is kept, as ``python -m evenmesh_generator.triton serve`` does it.

Also its own spans, within the trace of whoever calls it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing
from importlib import resources
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind
from tritonclient.grpc import InferInput

from evenmesh_generator.backends.triton import wire
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_generator.triton import environment, shared_memory, stubs
from evenmesh_generator.triton.tensors import texts
from evenmesh_kit.telemetry.spans import Spans
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.scripted_http import HttpReply, HttpRequest, in_thread
from tests.support.triton_models import write_odd_models
from tests.support.triton_server import TritonServer, skip_where_impossible
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

DEADLINE_S = 60.0
SPANS_S = 30.0
TRIES = 3
"""Twice, on a busy machine, a Triton that had just started sent no span of any request; another one is started."""


class Collector:
    """Takes OTLP over HTTP, which is all that Triton speaks; keeps trace and name of each span."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []
        self.url = ""

    async def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        self.take(request.body, request.headers["content-type"])
        await reply.send(200, "")

    def take(self, body: bytes, kind: str) -> None:
        """Takes an export, as either of OTLP's encodings has it."""
        if "json" in kind:
            reported = json.loads(body)["resourceSpans"]
            spans = [
                one for resource in reported for scope in resource["scopeSpans"] for one in scope["spans"]
            ]
            self.spans += [(one["traceId"].lower(), one["name"]) for one in spans]
            return
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [(one.trace_id.hex(), one.name) for one in scope.spans]

    def of(self, trace: str) -> set[str]:
        """Names of the spans of a trace, waiting for the first."""
        ends = time.monotonic() + SPANS_S
        while not (found := {name for one, name in self.spans if one == trace}) and time.monotonic() < ends:
            time.sleep(0.1)
        return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector of spans that listens."""
    collector = Collector()
    with in_thread(collector) as server:
        collector.url = f"{server.url}/traces"
        yield collector


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[TritonServer]:
    """A server with two small models, not started; its spans come to the collector.

    Their processes start and end as every model's; without PyTorch, in a tenth of the time.
    """
    skip_where_impossible()
    repository = tmp_path_factory.mktemp("repository")
    write_odd_models(repository, "odd", "other")
    home = tmp_path_factory.mktemp("home")
    settings = {
        "EVENMESH_TRITON_REPOSITORY": str(repository),
        "EVENMESH_TRITON_CHECK_S": "0.2",
        "EVENMESH_TRITON_TRACE_URL": collector.url,
    }
    server = TritonServer(home, {"odd": Path()}, settings=settings)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def small(shared: TritonServer) -> TritonServer:
    """The server, which runs: as the test before left it, or started again."""
    if not shared.running:
        shared.start()
    return shared


def regions(owner: int) -> list[str]:
    return [path.name for path in shared_memory.FOLDER.glob(f"evenmesh-triton-{owner}-*")]


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) and _alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _alive(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def described(target: str, telemetry: InMemoryTelemetry) -> None:
    """Asks a model what it is, as the generator does."""
    client = TritonClient(target, None, Spans(telemetry))
    try:
        async with aclosing(client.stream("odd", wire.DESCRIBE, timeout_s=DEADLINE_S)) as responses:
            assert [outputs async for outputs in responses]
    finally:
        await client.close()


async def test_a_request_is_one_trace_from_the_generator_into_triton(
    small: TritonServer, collector: Collector
) -> None:
    recorded, not_recorded = InMemoryTelemetry("generator"), InMemoryTelemetry("generator")
    traces = []
    while len(traces) < TRIES and not (traces and collector.of(traces[-1])):
        if traces:
            small.restart()
        with recorded.tracer.start_as_current_span("text_completion odd") as above:
            traces.append(format(above.get_span_context().trace_id, "032x"))
            await described(small.target, recorded)
    await described(small.target, not_recorded)
    assert collector.of(traces[-1])
    assert {one for one, _ in collector.spans} <= set(traces)
    assert not_recorded.spans() == ()
    span = recorded.spans()[0]
    assert (span.name, span.kind) == ("inference.GRPCInferenceService/ModelStreamInfer", SpanKind.CLIENT)
    host, port = small.target.rsplit(":", 1)
    attributes = dict(span.attributes or {})
    expected = {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelStreamInfer",
        "server.address": host,
        "server.port": int(port),
        "gen_ai.request.model": "odd",
    }
    assert attributes.items() >= expected.items()
    assert attributes["evenmesh.triton.responses"]


def test_a_model_loaded_anew_answers_again(small: TritonServer) -> None:
    with tritonclient.grpc.InferenceServerClient(small.target) as client:
        before = small.stub_pid("odd")
        client.unload_model("odd")
        assert gone([before])
        client.load_model("odd")
        wait_until(lambda: client.is_model_ready("odd"))
        assert small.stub_pid("odd") != before
        assert small.running


def test_a_stopped_server_leaves_nothing_and_starts_on_the_same_ports(small: TritonServer) -> None:
    target, owner, server = small.target, small.pid, small.server_pid
    models = stubs.of_server(server)
    assert len(models) == 2
    assert len(regions(owner)) == 2
    small.stop()
    assert gone([owner, server, *models])
    assert regions(owner) == []
    small.start()
    assert small.target == target


def test_a_server_that_ended_by_itself_leaves_no_process(small: TritonServer) -> None:
    owner, models = small.pid, stubs.of_server(small.server_pid)
    for pid in models:
        os.kill(pid, signal.SIGSTOP)  # as one that hangs where it should notice
    os.kill(small.server_pid, signal.SIGKILL)
    assert gone([owner, *models])
    assert regions(owner) == []


def test_a_killed_owner_takes_its_server_along_and_the_next_sweeps(small: TritonServer) -> None:
    owner, server = small.pid, small.server_pid
    models = stubs.of_server(server)
    os.kill(server, signal.SIGSTOP)  # so that it cannot end in order
    os.kill(owner, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    assert gone([owner, server])
    left = shared_memory.FOLDER / f"evenmesh-triton-{owner}-left-by-a-test"
    left.touch()
    small.stop()
    small.start()
    assert gone(list(models))
    assert regions(owner) == []


def test_a_model_whose_process_died_ends_the_server_unless_somebody_loads_it_anew(
    small: TritonServer,
) -> None:
    os.kill(small.stub_pid("odd"), signal.SIGKILL)
    wait_until(lambda: not small.running)
    assert "a process of Triton's Python backend has ended" in small.log.read_text()


def test_the_templates_are_a_repository_themselves(tmp_path: Path) -> None:
    skip_where_impossible()
    repository = tmp_path / "repository"
    templates = Path(str(resources.files("evenmesh_generator") / "model_repository"))
    shutil.copytree(templates, repository, ignore=shutil.ignore_patterns("__pycache__"))
    # Without a folder of its own, the bundled model; without vLLM's backend and a Llama, not those.
    for name in ("decoder_only", "decoder_only_vllm"):
        shutil.rmtree(repository / name)
    for config in repository.glob("*/config.pbtxt"):
        packages = f'key: "packages" value: {{ string_value: "{environment.prepare().packages}" }}'
        text = config.read_text().replace('key: "packages" value: { string_value: "" }', packages)
        config.write_text(text)
    home = tmp_path / "home"
    home.mkdir()
    server = TritonServer(home, {}, bundled=True, settings={"EVENMESH_TRITON_REPOSITORY": str(repository)})
    with server, tritonclient.grpc.InferenceServerClient(server.target) as client:
        ready = {model.name: model.state for model in client.get_model_repository_index().models}
        assert ready == dict.fromkeys(("encoder_decoder", "score_relevance", "embed"), "READY")
        pair = {"question": "Who wrote Hamlet?", "title": "Hamlet", "text": "Shakespeare wrote Hamlet."}
        rows = [InferInput(name, [1, 1], "BYTES") for name in pair]
        for row, value in zip(rows, pair.values(), strict=True):
            row.set_data_from_numpy(texts([value])[:, None])
        judged = client.infer("score_relevance", rows)
        assert 0 <= judged.as_numpy("probability")[0, 0] <= 1


def test_what_keeps_a_server_from_starting_is_reported_in_a_line(tmp_path: Path) -> None:
    skip_where_impossible()
    (tmp_path / "home").mkdir()
    server = TritonServer(tmp_path / "home", {"llama": tmp_path / "nothing"})
    with pytest.raises(AssertionError, match="EVENMESH_GENERATOR_MODELS: model 'llama'"):
        server.start()
    assert [line for line in server.log.read_text().splitlines() if not _is_json(line)][-1].startswith(
        "EVENMESH_"
    )


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
