"""RPCs that fail are counted with the reason that their caller is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.errors import reason_in
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.waiting import until


@pytest.mark.parametrize("kind", ["unary", "server_stream", "client_stream", "bidi"])
async def test_an_error_is_counted_with_its_reason(serve: Any, call: Any, kind: str) -> None:
    async def unary(request: Any, context: Any) -> ItemError:
        raise errors.Unavailable("NO_MODEL", "a secret")

    async def stream(request: Any, context: Any) -> AsyncIterator[ItemError]:
        yield ItemError()
        raise errors.Unavailable("NO_MODEL", "a secret")

    telemetry = InMemoryTelemetry("echo")
    server = await serve(
        telemetry=telemetry, unary=unary, server_stream=stream, client_stream=unary, bidi=stream
    )
    with pytest.raises(grpc.RpcError):
        await call(server)(kind)
    await until(lambda: "evenmesh.rpc.errors" in telemetry.metrics(), 10)
    (point,) = telemetry.metrics()["evenmesh.rpc.errors"].data.data_points
    assert point.value == 1
    reported = {key: point.attributes[key] for key in ("rpc.method", "rpc.grpc.status_code", "error.type")}
    assert reported == {"rpc.method": kind, "rpc.grpc.status_code": 14, "error.type": "NO_MODEL"}
    (span,) = telemetry.spans()
    assert (span.attributes or {})["error.type"] == "NO_MODEL"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize(("timeout", "deadline"), [(0.9, "short"), (30, None), (None, None)])
async def test_too_short_a_deadline_is_marked(
    serve: Any, call: Any, timeout: float | None, deadline: str | None
) -> None:
    async def unary(request: Any, context: Any) -> ItemError:
        raise errors.DeadlineExceeded("no time is left")

    telemetry = InMemoryTelemetry("echo")
    server = await serve(telemetry=telemetry, unary=unary)
    with pytest.raises(grpc.RpcError):
        await call(server)("unary", timeout=timeout)
    await until(lambda: "evenmesh.rpc.errors" in telemetry.metrics(), 10)
    for metric in ("evenmesh.rpc.errors", "rpc.server.duration"):
        (point,) = telemetry.metrics()[metric].data.data_points
        assert point.attributes["rpc.grpc.status_code"] == 4
        assert point.attributes.get("evenmesh.deadline") == deadline


async def test_a_call_that_works_is_no_error(serve: Any, call: Any) -> None:
    telemetry = InMemoryTelemetry("echo")
    await call(await serve(telemetry=telemetry))("unary")
    assert "evenmesh.rpc.errors" not in telemetry.metrics()


@pytest.mark.parametrize("trailers", [None, (), (("other", "x"),), (("grpc-status-details-bin", b"\xff"),)])
def test_metadata_of_others_has_no_reason(trailers: Any) -> None:
    assert reason_in(trailers) == ""
