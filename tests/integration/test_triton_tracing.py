"""A real Triton server's own spans, within the trace of whoever calls it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind

from evenmesh_generator.backends.triton import wire
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_kit.telemetry.setup import InMemoryTelemetry, Telemetry
from evenmesh_kit.telemetry.spans import Spans
from tests.support import tiny_models
from tests.support.triton_server import TritonServer, skip_where_impossible

pytestmark = pytest.mark.timeout(600)

DEADLINE_S = 60.0
SPANS_S = 30.0
TRIES = 3
"""Once, on a busy machine, Triton sent no span of its only request within a minute."""


class Collector:
    """Takes OTLP over HTTP, which is all that Triton speaks; keeps trace and name of each span."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(body, self.headers["Content-Type"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing is said."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

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


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


async def described(target: str, telemetry: InMemoryTelemetry) -> None:
    """Asks a model what it is, as the generator does."""
    client = TritonClient(target, None, Spans(telemetry))
    try:
        async with aclosing(client.stream("t5", wire.DESCRIBE, timeout_s=DEADLINE_S)) as responses:
            assert [outputs async for outputs in responses]
    finally:
        await client.close()


async def test_a_request_is_one_trace_from_the_generator_into_triton(
    tmp_path: Path, collector: Collector
) -> None:
    skip_where_impossible()
    model = tiny_models.t5(tmp_path / "t5")
    settings = {"EVENMESH_TRITON_TRACE_URL": collector.url}
    with TritonServer(tmp_path, {"t5": model}, settings=settings) as server:
        recorded, not_recorded = Telemetry.in_memory("generator"), Telemetry.in_memory("generator")
        traces = []
        while len(traces) < TRIES and not (traces and collector.of(traces[-1])):
            with recorded.tracer.start_as_current_span("text_completion t5") as above:
                traces.append(format(above.get_span_context().trace_id, "032x"))
                await described(server.target, recorded)
        await described(server.target, not_recorded)
        assert collector.of(traces[-1])
    assert {one for one, _ in collector.spans} <= set(traces)
    assert not_recorded.spans() == ()
    span = recorded.spans()[0]
    assert (span.name, span.kind) == ("inference.GRPCInferenceService/ModelStreamInfer", SpanKind.CLIENT)
    host, port = server.target.rsplit(":", 1)
    attributes = dict(span.attributes or {})
    expected = {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelStreamInfer",
        "server.address": host,
        "server.port": int(port),
        "gen_ai.request.model": "t5",
    }
    assert attributes.items() >= expected.items()
    assert attributes["evenmesh.triton.responses"]
