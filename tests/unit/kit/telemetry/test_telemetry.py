"""Traces and metrics through all four kinds of calls."""

from __future__ import annotations

import asyncio
import builtins
import socket
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from pydantic_settings import SettingsConfigDict

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.channel import connect_sync
from evenmesh_kit.settings import ServiceSettings, SettingsError
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.otlp_collector import Collector
from tests.support.waiting import until

SERVICE = "evenmesh.test.v1.EchoService"
KINDS = ("unary", "server_stream", "client_stream", "bidi")


class Settings(ServiceSettings):
    """Settings of the service under test."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_ECHO_")


async def ended(telemetry: InMemoryTelemetry, count: int) -> dict[SpanKind, ReadableSpan]:
    """The spans by kind, once there are ``count``: the caller's ends just after its call."""
    await until(lambda: len(telemetry.spans()) >= count, 10)
    assert len(telemetry.spans()) == count
    return {span.kind: span for span in telemetry.spans()}


def working(tracer: trace.Tracer) -> dict[str, Any]:
    """Behaviours of all four kinds that make a span of their own."""

    async def unary(request: Any, context: Any) -> ItemError:
        with tracer.start_as_current_span("work"):
            return ItemError()

    async def stream(request: Any, context: Any) -> AsyncIterator[ItemError]:
        yield ItemError()
        with tracer.start_as_current_span("work"):
            yield ItemError()

    return {"unary": unary, "server_stream": stream, "client_stream": unary, "bidi": stream}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_is_one_trace_from_caller_to_work(serve: Any, call: Any, kind: str) -> None:
    telemetry = InMemoryTelemetry("echo")
    echo = call(await serve(telemetry=telemetry, **working(telemetry.tracer)), telemetry=telemetry)
    with telemetry.tracer.start_as_current_span("ask", kind=SpanKind.PRODUCER):
        await echo(kind)
    spans = await ended(telemetry, 4)
    ask, client = spans[SpanKind.PRODUCER], spans[SpanKind.CLIENT]
    server, work = spans[SpanKind.SERVER], spans[SpanKind.INTERNAL]
    for parent, child in [(ask, client), (client, server), (server, work)]:
        assert child.parent is not None
        assert parent.context is not None
        assert child.context is not None
        assert child.parent.span_id == parent.context.span_id
        assert child.context.trace_id == parent.context.trace_id
    assert server.parent is not None
    assert server.parent.is_remote
    for span in (client, server):
        assert span.name == f"{SERVICE}/{kind}"
        assert dict(span.attributes or {}) == {
            "rpc.system": "grpc",
            "rpc.service": SERVICE,
            "rpc.method": kind,
            "rpc.grpc.status_code": 0,
        }
        assert span.status.status_code is StatusCode.UNSET
    assert server.resource.attributes["service.name"] == "echo"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("error", "number", "servers_fault"),
    [
        (errors.InvalidField("k", "is a secret"), 3, False),
        (errors.Unavailable("NO_MODEL", "is a secret"), 14, True),
        (KeyError("a secret"), 13, True),
    ],
)
async def test_a_failed_call_is_reported_by_code_and_nothing_else(
    serve: Any, call: Any, kind: str, error: Exception, number: int, servers_fault: bool
) -> None:
    async def unary(request: Any, context: Any) -> ItemError:
        raise error

    async def stream(request: Any, context: Any) -> AsyncIterator[ItemError]:
        yield ItemError()
        raise error

    telemetry = InMemoryTelemetry("echo")
    server = await serve(
        telemetry=telemetry, unary=unary, server_stream=stream, client_stream=unary, bidi=stream
    )
    echo = call(server, telemetry=telemetry)
    with pytest.raises(grpc.RpcError):
        await echo(kind)
    spans = await ended(telemetry, 2)
    for span in spans.values():
        assert (span.attributes or {})["rpc.grpc.status_code"] == number
        assert "secret" not in span.to_json()
    assert spans[SpanKind.CLIENT].status.status_code is StatusCode.ERROR
    reported = spans[SpanKind.SERVER].status.status_code
    assert reported is (StatusCode.ERROR if servers_fault else StatusCode.UNSET)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_call_ends_both_spans(serve: Any, call: Any, kind: str) -> None:
    telemetry = InMemoryTelemetry("echo")
    begun = asyncio.Event()

    async def unary(request: Any, context: Any) -> ItemError:
        begun.set()
        await asyncio.Event().wait()
        return ItemError()

    async def stream(request: Any, context: Any) -> AsyncIterator[ItemError]:
        yield ItemError()
        begun.set()
        await asyncio.Event().wait()

    server = await serve(
        telemetry=telemetry, unary=unary, server_stream=stream, client_stream=unary, bidi=stream
    )
    request = ItemError()
    running = call(server, telemetry=telemetry).method(kind)(
        [request] if kind in ("client_stream", "bidi") else request, timeout=20
    )
    if kind in ("server_stream", "bidi"):
        await running.read()
    async with asyncio.timeout(10):
        await begun.wait()
    running.cancel()
    spans = await ended(telemetry, 2)
    for span in spans.values():
        assert (span.attributes or {})["rpc.grpc.status_code"] == 1


async def test_a_write_and_read_stream_is_traced_and_stays_a_call(serve: Any, call: Any) -> None:
    telemetry = InMemoryTelemetry("echo")
    running = call(await serve(telemetry=telemetry), telemetry=telemetry).method("bidi")(timeout=20)
    for text in ("a", "b"):
        await running.write(ItemError(message=text))
        assert (await running.read()).message == text
    await running.done_writing()
    assert await running.read() is grpc.aio.EOF
    assert await running.code() == grpc.StatusCode.OK
    await ended(telemetry, 2)


async def test_a_trace_that_is_not_sampled_makes_no_spans_but_travels(serve: Any, call: Any) -> None:
    telemetry = InMemoryTelemetry("echo", trace_sample_ratio=0.0)
    seen: list[trace.SpanContext] = []

    async def unary(request: Any, context: Any) -> ItemError:
        seen.append(trace.get_current_span().get_span_context())
        return ItemError()

    echo = call(await serve(telemetry=telemetry, unary=unary), telemetry=telemetry)
    with telemetry.tracer.start_as_current_span("ask") as span:
        await echo("unary")
        above = span.get_span_context()
    assert telemetry.spans() == ()
    assert seen[0].trace_id == above.trace_id
    assert not seen[0].trace_flags.sampled


async def test_a_service_in_between_hands_the_trace_on(serve: Any, call: Any) -> None:
    telemetry = InMemoryTelemetry("echo")
    inner = call(await serve(telemetry=telemetry), telemetry=telemetry)

    async def relay(request: Any, context: Any) -> ItemError:
        await inner("bidi")
        return ItemError()

    outer = call(await serve(telemetry=telemetry, unary=relay), telemetry=telemetry)
    await outer("unary")
    await ended(telemetry, 4)
    assert len({span.context.trace_id for span in telemetry.spans() if span.context}) == 1


async def test_health_checks_are_not_recorded(serve: Any, call: Any) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    telemetry = InMemoryTelemetry("echo")
    channel = call(await serve(telemetry=telemetry)).channel
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert telemetry.spans() == ()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sync_caller_is_traced_too(serve: Any, kind: str) -> None:
    telemetry = InMemoryTelemetry("echo")
    server = await serve(telemetry=telemetry)

    def sync_call() -> None:
        with connect_sync(server.address, service=SERVICE, telemetry=telemetry) as channel:
            make = {
                "unary": channel.unary_unary,
                "server_stream": channel.unary_stream,
                "client_stream": channel.stream_unary,
                "bidi": channel.stream_stream,
            }[kind]
            streams = kind in ("client_stream", "bidi")
            answer: Any = make(f"/{SERVICE}/{kind}")(iter([b""]) if streams else b"", timeout=20)
            if kind in ("server_stream", "bidi"):
                assert len(list(answer)) == (3 if kind == "server_stream" else 1)

    await asyncio.to_thread(sync_call)
    spans = await ended(telemetry, 2)
    server_span, client_span = spans[SpanKind.SERVER], spans[SpanKind.CLIENT]
    assert server_span.parent is not None
    assert client_span.context is not None
    assert server_span.parent.span_id == client_span.context.span_id
    assert (client_span.attributes or {})["rpc.grpc.status_code"] == 0


async def test_rate_errors_and_duration_are_measured(serve: Any, call: Any) -> None:
    telemetry = InMemoryTelemetry("echo")

    async def picky(request: ItemError, context: Any) -> ItemError:
        if request.message == "bad":
            raise errors.InvalidField("message", "bad")
        return request

    echo = call(await serve(telemetry=telemetry, unary=picky), telemetry=telemetry)
    for text in ("a", "b", "bad"):
        if text == "bad":
            with pytest.raises(grpc.RpcError):
                await echo("unary", text)
        else:
            await echo("unary", text)
    await ended(telemetry, 6)
    for side in ("server", "client"):
        metric = telemetry.metrics()[f"rpc.{side}.duration"]
        assert metric.unit == "ms"
        points = {
            (point.attributes or {})["rpc.grpc.status_code"]: point for point in metric.data.data_points
        }
        assert {code: getattr(point, "count", None) for code, point in points.items()} == {0: 2, 3: 1}
        assert (points[0].attributes or {})["rpc.service"] == SERVICE
        assert getattr(points[0], "sum", 0) > 0


async def test_durations_are_measured_in_unsampled_traces_too(serve: Any, call: Any) -> None:
    telemetry = InMemoryTelemetry("echo", trace_sample_ratio=0.0)
    await call(await serve(telemetry=telemetry))("unary")
    [point] = telemetry.metrics()["rpc.server.duration"].data.data_points
    assert getattr(point, "count", None) == 1


def test_off_by_default(tmp_path: Any) -> None:
    telemetry = Telemetry.from_settings("echo", Settings(home=tmp_path))
    assert not telemetry.enabled
    assert (telemetry.server_interceptors(), telemetry.client_interceptors()) == ((), ())
    assert telemetry.sync_client_interceptors() == ()
    with telemetry.tracer.start_as_current_span("work") as span:
        assert not span.is_recording()
    telemetry.meter.create_counter("x").add(1)
    telemetry.shutdown()


async def test_prometheus_can_scrape_it(serve: Any, call: Any, tmp_path: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    telemetry = Telemetry.from_settings("echo", Settings(home=tmp_path, metrics_port=port))
    try:
        await call(await serve(telemetry=telemetry))("unary")
        page = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
        assert "rpc_server_duration_milliseconds_count" in page
        assert f'rpc_service="{SERVICE}"' in page
        with pytest.raises(SettingsError, match=f"^EVENMESH_ECHO_METRICS_PORT={port}: cannot listen"):
            Telemetry.from_settings("echo", Settings(home=tmp_path, metrics_port=port))
    finally:
        telemetry.shutdown()


async def test_metrics_are_shown_to_this_machine_alone_by_default(tmp_path: Any) -> None:
    for metrics_host, seen in (("127.0.0.1", False), ("0.0.0.0", True)):  # noqa: S104 - what is tested
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given: dict[str, Any] = {"host": "0.0.0.0", "allow_insecure": True, "metrics_port": port}  # noqa: S104
        if seen:
            given["metrics_host"] = metrics_host
        settings = Settings(home=tmp_path, **given)
        telemetry = Telemetry.from_settings("echo", settings)
        try:
            # All of 127.0.0.0/8 is this machine: another address stands for one that others can reach.
            with socket.socket() as other:
                assert (other.connect_ex(("127.0.0.2", port)) == 0) is seen
        finally:
            telemetry.shutdown()


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as page:  # noqa: S310 - our own server
        text: bytes = page.read()
    return text.decode()


async def test_otlp_sends_spans_and_metrics(serve: Any, call: Any, tmp_path: Any) -> None:
    with Collector() as collector:
        telemetry = Telemetry.from_settings(
            "echo", Settings(home=tmp_path, otlp_endpoint=collector.endpoint, trace_sample_ratio=1)
        )
        await call(await serve(telemetry=telemetry))("unary")
        await asyncio.to_thread(telemetry.shutdown)
    names = {span.name for span in collector.spans_when(bool)} | collector.metrics
    admission = {f"evenmesh.admission.{one}" for one in ("in_flight", "waiting", "capacity", "refused")}
    ours = {name for name in names if not name.startswith("otel.")}
    assert ours == {f"{SERVICE}/unary", "rpc.server.duration"} | admission


@pytest.mark.parametrize(
    ("field", "value", "package"),
    [
        ("otlp_endpoint", "http://127.0.0.1:4317", "opentelemetry.exporter.otlp"),
        ("metrics_port", 0, "opentelemetry.exporter.prometheus"),
    ],
)
def test_a_missing_exporter_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, field: str, value: object, package: str
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(package):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsError, match=rf"^EVENMESH_ECHO_{field.upper()} .*libs/kit\[telemetry\]"):
        Telemetry.from_settings("echo", Settings(home=tmp_path, **{field: value}))
