"""The error table, across the wire and back."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.wire import errors
from evenmesh.wire.channel import connect_sync
from evenmesh_core.errors import InvalidInput
from evenmesh_kit.rpc import statuses

KINDS = ("unary", "server_stream", "client_stream", "bidi")
TABLE = [
    errors.InvalidField("sampling.alpha", "must be in [0, 100], got -1"),
    errors.NotFound("collection", "there is no collection 'x'"),
    errors.AlreadyExists("name", "there is a collection 'x'"),
    errors.FailedPrecondition("NO_PREVIOUS_MODEL", "there is no model to go back to"),
    errors.Overloaded("too much work", 1.25),
    errors.Unavailable("STARTING", "still loading"),
    errors.DeadlineExceeded("no time is left"),
    errors.Unimplemented("not in this version"),
    errors.Internal("0123456789abcdef"),
    errors.MeshError(grpc.StatusCode.DATA_LOSS, "DISK", "a file is damaged"),
]


def raising(error: BaseException) -> dict[str, Any]:
    """Behaviours of all four kinds that raise; the streaming ones after their first answer."""

    async def unary(request: Any, context: Any) -> Any:
        raise error

    async def stream(request: Any, context: Any) -> Any:
        yield common_pb2.ItemError(message="first")
        raise error

    return {"unary": unary, "server_stream": stream, "client_stream": unary, "bidi": stream}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", TABLE, ids=lambda error: type(error).__name__)
async def test_every_error_comes_back_as_it_was_raised(
    serve: Any, call: Any, kind: str, error: errors.MeshError
) -> None:
    echo = call(await serve(**raising(error)))
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind)
    back = errors.from_rpc_error(failed.value)
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert failed.value.details() == str(error)


async def test_the_field_is_named_in_the_status_text_once(serve: Any, call: Any) -> None:
    echo = call(await serve(**raising(errors.InvalidField("k", "must be in [1, 100], got 0"))))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert failed.value.details() == "k: must be in [1, 100], got 0"
    assert str(errors.InvalidField("k", "k is 0")) == "k is 0"


async def test_bad_input_of_the_science_is_the_callers_field(serve: Any, call: Any) -> None:
    error = InvalidInput("alpha", -1.0, "finite and at least 0")
    echo = call(await serve(**raising(error)))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert errors.from_rpc_error(failed.value).field == "alpha"
    assert failed.value.details() == str(error)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_unforeseen_leaves_only_an_incident(
    serve: Any, call: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    echo = call(await serve(**raising(KeyError("/etc/secret"))))
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as failed:
        await echo(kind)
    assert failed.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in repr(failed.value)
    [record] = [record for record in caplog.records if record.name == "evenmesh.kit.statuses"]
    assert vars(record)["incident"] in (failed.value.details() or "")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


async def test_a_timeout_is_a_deadline(serve: Any, call: Any) -> None:
    echo = call(await serve(**raising(TimeoutError())))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("bidi")
    assert isinstance(errors.from_rpc_error(failed.value), errors.DeadlineExceeded)


async def test_an_upstream_error_of_the_mesh_passes_through_as_it_is(serve: Any, call: Any) -> None:
    upstream = call(await serve(**raising(errors.Overloaded("full", 0.5))))

    async def relay(request: Any, context: Any) -> Any:
        await upstream("unary")

    echo = call(await serve(unary=relay))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    back = errors.from_rpc_error(failed.value)
    assert isinstance(back, errors.Overloaded)
    assert back.retry_after_s == 0.5


@pytest.mark.parametrize(
    ("sent", "passed_on", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
        (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.RESOURCE_EXHAUSTED, "UPSTREAM_EXHAUSTED"),
        (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, "INTERNAL"),
        (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_the_text_of_a_foreign_peer_goes_no_further(
    serve: Any, call: Any, sent: grpc.StatusCode, passed_on: grpc.StatusCode, reason: str
) -> None:
    async def foreign(request: Any, context: Any) -> Any:
        await context.abort(sent, "connect to 10.0.0.7 failed")

    upstream = call(await serve(unary=foreign))

    async def relay(request: Any, context: Any) -> Any:
        await upstream("unary")

    echo = call(await serve(unary=relay))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    back = errors.from_rpc_error(failed.value)
    assert (back.code, back.reason) == (passed_on, reason)
    assert "10.0.0.7" not in back.message


async def test_a_callers_own_view_of_a_foreign_status_keeps_its_text(serve: Any, call: Any) -> None:
    async def foreign(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max")

    echo = call(await serve(unary=foreign))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    back = errors.from_rpc_error(failed.value)
    assert type(back) is errors.MeshError  # not Overloaded: trying again does not help
    assert (back.reason, back.message) == ("RESOURCE_EXHAUSTED", "message larger than max")


async def test_a_sync_caller_reads_the_same(serve: Any) -> None:
    import asyncio

    server = await serve(**raising(errors.Overloaded("full", 2.0)))

    def sync_call() -> errors.MeshError:
        with connect_sync(server.address, service="evenmesh.test.v1.EchoService") as channel:
            method = channel.unary_unary("/evenmesh.test.v1.EchoService/unary")
            with pytest.raises(grpc.RpcError) as failed:
                method(b"", timeout=20)
            return errors.from_rpc_error(failed.value)

    back = await asyncio.to_thread(sync_call)
    assert isinstance(back, errors.Overloaded)
    assert back.retry_after_s == 2.0


def test_an_rpc_error_without_a_status_is_unknown() -> None:
    assert errors.from_rpc_error(grpc.RpcError("odd")).code == grpc.StatusCode.UNKNOWN
    assert isinstance(statuses.to_mesh_error(grpc.RpcError("odd")), errors.Internal)


def test_damaged_details_are_no_details() -> None:
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, None, metadata, "gone")  # type: ignore[arg-type]
    back = errors.from_rpc_error(error)
    assert (back.reason, back.message, back.field) == ("NOT_FOUND", "gone", None)


@pytest.mark.parametrize("error", TABLE, ids=lambda error: type(error).__name__)
def test_an_items_error_comes_back_too(error: errors.MeshError) -> None:
    back = errors.from_item_error(statuses.item_error(error))
    assert (back.code, back.reason, back.message, back.field) == (
        error.code,
        error.reason,
        error.message,
        error.field,
    )


def test_an_items_unforeseen_error_is_opaque() -> None:
    assert "secret" not in str(statuses.item_error(KeyError("secret")))


def test_an_items_unknown_code_is_unknown() -> None:
    item = common_pb2.ItemError(code="FROM_THE_FUTURE", reason="X", message="m")
    assert errors.from_item_error(item).code == grpc.StatusCode.UNKNOWN


def test_an_error_with_a_retry_delay_keeps_the_class_of_its_code() -> None:
    away = errors.restored(grpc.StatusCode.UNAVAILABLE, "TRITON_UNAVAILABLE", "gone", retry_after_s=2.0)
    assert (type(away), away.retry_after_s) == (errors.Unavailable, 2.0)
    full = errors.restored(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "full", retry_after_s=2.0)
    assert type(full) is errors.Overloaded
