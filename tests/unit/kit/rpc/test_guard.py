"""Decoding, deadlines and cancellation between the wire and a servicer."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.reranker.v1 import reranker_service_pb2_grpc
from evenmesh.wire import deadline, errors
from evenmesh_kit.rpc import replies
from evenmesh_kit.rpc.guard import MESSAGE_LIMIT_KEY

KINDS = ("unary", "server_stream", "client_stream", "bidi")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_valid_goes_through(serve: Any, call: Any, kind: str) -> None:
    answers = {
        "unary": ["a"],
        "server_stream": ["a0", "a1", "a2"],
        "client_stream": ["a,b"],
        "bidi": ["a", "b"],
    }
    echo = call(await serve())
    assert await echo(kind, *(["a", "b"] if kind in ("client_stream", "bidi") else ["a"])) == answers[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "raw",
    [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7fshort"],
    ids=["not protobuf", "wrong UTF-8", "cut off"],
)
async def test_undecodable_bytes_are_the_callers_error(serve: Any, call: Any, kind: str, raw: bytes) -> None:
    echo = call(await serve())
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind, raw=raw)
    back = errors.from_rpc_error(failed.value)
    assert (back.code, back.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")
    assert "request is not a valid evenmesh.common.v1.ItemError" in back.message


def watching(seen: dict[str, Any]) -> dict[str, Any]:
    """Behaviours of all four kinds that tell the deadline they see; streaming ones also after an answer."""

    async def unary(request: Any, context: Any) -> ItemError:
        seen["deadline"] = deadline.current()
        return ItemError()

    async def stream(request: Any, context: Any) -> Any:
        first = deadline.current()
        yield ItemError()
        seen["deadline"] = deadline.current()
        assert first is deadline.current()

    return {"unary": unary, "server_stream": stream, "client_stream": unary, "bidi": stream}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_callers_deadline_is_the_current_one(serve: Any, call: Any, kind: str) -> None:
    seen: dict[str, Any] = {}
    echo = call(await serve(**watching(seen)))
    await echo(kind, timeout=10)
    assert 0 < seen["deadline"].remaining() < 11  # on the wire gRPC rounds up, by less than a tenth
    await echo(kind, timeout=100)
    assert 11 < seen["deadline"].remaining() < 110
    assert deadline.current() is deadline.NEVER


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_without_deadline_gets_the_default(serve: Any, call: Any, kind: str) -> None:
    seen: dict[str, Any] = {}
    echo = call(await serve(settings={"default_deadline_s": 42}, **watching(seen)))
    await echo(kind, timeout=None)
    assert 0 < seen["deadline"].remaining() <= 42


def waiting(ended: asyncio.Queue[str], begun: asyncio.Event | None = None) -> dict[str, Any]:
    """Behaviours of all four kinds that wait for ever and tell how that ended; ``begun`` is set when they do.

    A caller may have the first message of a stream before its write is over for the server: a call that ends
    in between ends the write, and closes a generator that has come no further.
    """

    async def wait() -> None:
        try:
            if begun is not None:
                begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.put_nowait("cancelled")
            raise
        finally:
            ended.put_nowait("cleaned up")

    async def unary(request: Any, context: Any) -> ItemError:
        await wait()
        return ItemError()

    async def stream(request: Any, context: Any) -> Any:
        yield ItemError(message="first")
        await wait()

    return {"unary": unary, "server_stream": stream, "client_stream": unary, "bidi": stream}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_default_deadline_ends_the_call(serve: Any, call: Any, kind: str) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    echo = call(await serve(settings={"default_deadline_s": 1}, **waiting(ended)))
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind, timeout=None)
    assert isinstance(errors.from_rpc_error(failed.value), errors.DeadlineExceeded)
    async with asyncio.timeout(10):
        assert [await ended.get(), await ended.get()] == ["cancelled", "cleaned up"]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_callers_deadline_reaches_the_handler(serve: Any, call: Any, kind: str) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    echo = call(await serve(**waiting(ended)))
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind, timeout=2)
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(10):
        assert [await ended.get(), await ended.get()] == ["cancelled", "cleaned up"]


@pytest.mark.parametrize("kind", KINDS)
async def test_cancellation_reaches_the_handler(
    serve: Any, call: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    begun = asyncio.Event()
    server = await serve(**waiting(ended, begun))
    echo = call(server)
    streaming = kind in ("server_stream", "bidi")
    request = ItemError(message="a")
    running = echo.method(kind)([request] if kind in ("client_stream", "bidi") else request, timeout=20)
    if streaming:
        assert (await running.read()).message == "first"
    async with asyncio.timeout(10):
        await begun.wait()
    assert server.in_flight == 1
    running.cancel()
    async with asyncio.timeout(10):
        assert [await ended.get(), await ended.get()] == ["cancelled", "cleaned up"]
        await server.idle()
    assert await running.code() == grpc.StatusCode.CANCELLED
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_stream_that_no_one_reads_is_closed_with_its_call(serve: Any, call: Any) -> None:
    ended: asyncio.Queue[Any] = asyncio.Queue()

    async def stream(request: Any, context: Any) -> Any:
        try:
            while True:
                yield ItemError(message="x" * 100_000)  # soon more than flow control lets out
        finally:
            ended.put_nowait(deadline.current())

    echo = call(await serve(server_stream=stream))
    running = echo.method("server_stream")(ItemError(), timeout=20)
    await running.read()
    running.cancel()
    async with asyncio.timeout(10):
        assert (await ended.get()) is not deadline.NEVER


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancellation_no_one_asked_for_is_an_error(serve: Any, call: Any, kind: str) -> None:
    async def unary(request: Any, context: Any) -> ItemError:
        raise asyncio.CancelledError

    async def stream(request: Any, context: Any) -> Any:
        yield ItemError()
        raise asyncio.CancelledError

    echo = call(await serve(unary=unary, server_stream=stream, client_stream=unary, bidi=stream))
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind)
    assert failed.value.code() == grpc.StatusCode.INTERNAL


async def test_a_servicers_own_abort_stays(serve: Any, call: Any) -> None:
    async def aborts(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "end of file")

    echo = call(await serve(unary=aborts))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "end of file")


async def test_an_error_after_an_abort_does_not_replace_it(serve: Any, call: Any) -> None:
    async def aborts(request: Any, context: Any) -> None:
        try:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "end of file")
        finally:
            raise KeyError("clean-up failed")

    echo = call(await serve(unary=aborts))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "end of file")


async def test_a_write_api_stream_is_guarded_too(serve: Any, call: Any) -> None:
    async def writes(request: Any, context: Any) -> None:
        await context.write(ItemError(message="written"))
        raise errors.NotFound("name", "gone")

    echo = call(await serve(server_stream=writes))
    running = echo.method("server_stream")(ItemError(), timeout=20)
    assert (await running.read()).message == "written"
    with pytest.raises(grpc.RpcError) as failed:
        await running.read()
    assert isinstance(errors.from_rpc_error(failed.value), errors.NotFound)


async def test_a_method_no_one_wrote_is_unimplemented(serve: Any, call: Any) -> None:
    stub = reranker_service_pb2_grpc.RerankerServiceServicer().Rerank

    echo = call(await serve(unary=stub))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert isinstance(errors.from_rpc_error(failed.value), errors.Unimplemented)


async def test_a_method_no_service_has_is_unimplemented(serve: Any, call: Any) -> None:
    echo = call(await serve())
    with pytest.raises(grpc.RpcError) as failed:
        await echo.channel.unary_unary("/evenmesh.test.v1.EchoService/other")(b"")
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_every_good_answer_tells_the_message_limit(serve: Any, call: Any) -> None:
    echo = call(await serve(settings={"max_message_bytes": 54_321}))
    running = echo.method("unary")(ItemError(), timeout=20)
    await running
    assert (MESSAGE_LIMIT_KEY, "54321") in tuple(await running.trailing_metadata())


@pytest.mark.parametrize("size", [60_000, 10_000_000])
async def test_a_message_over_the_limit_is_resource_exhausted(serve: Any, call: Any, size: int) -> None:
    echo = call(await serve(settings={"max_message_bytes": 54_321}), max_message_bytes=2**30)
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary", "x" * size)
    assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await echo("unary", "x" * 1_000) == ["x" * 1_000]


async def test_a_deadline_travels_and_shrinks(serve: Any, call: Any) -> None:
    seen: dict[str, Any] = {}
    inner = call(await serve(**watching(seen)))

    async def relay(request: ItemError, context: Any) -> ItemError:
        seen["outer"] = deadline.current()
        await inner("unary", timeout=deadline.current().budget(margin_s=2))
        return request

    outer = call(await serve(unary=relay))
    await outer("unary", timeout=10)
    assert 0 < seen["deadline"].remaining() < 8.8
    assert seen["deadline"].remaining() < seen["outer"].remaining()


async def test_no_budget_left_is_reported_as_the_deadline(serve: Any, call: Any) -> None:
    async def relay(request: ItemError, context: Any) -> None:
        deadline.current().budget(margin_s=60)

    echo = call(await serve(unary=relay))
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary", timeout=10)
    assert isinstance(errors.from_rpc_error(failed.value), errors.DeadlineExceeded)


@pytest.mark.parametrize("style", ["iterator", "write"])
@pytest.mark.parametrize("kind", ["client_stream", "bidi"])
async def test_a_stream_refused_at_its_first_request_says_why(
    serve: Any, call: Any, kind: str, style: str
) -> None:
    # Without the guard reading on, grpc.aio callers see INTERNAL here, most of the time.
    async def refuses(requests: Any, context: Any) -> ItemError:
        async for _ in requests:
            raise errors.InvalidField("passages[0].id", "must not be empty")
        return ItemError()

    async def refuses_too(requests: Any, context: Any) -> Any:
        async for request in requests:
            yield request
            raise errors.InvalidField("passages[0].id", "must not be empty")

    echo = call(await serve(client_stream=refuses, bidi=refuses_too))
    many = [ItemError(message="x" * 1000)] * 200
    for _ in range(5):
        running = echo.method(kind)(many if style == "iterator" else None, timeout=60)
        if style == "write":
            for request in many:
                await running.write(request)
            await running.done_writing()
        if kind == "bidi":
            await running.read()
        with pytest.raises(grpc.RpcError) as failed:
            await (running.read() if kind == "bidi" else running)
        assert errors.from_rpc_error(failed.value).field == "passages[0].id"


async def test_an_interactive_caller_is_refused_without_ending_its_stream(serve: Any, call: Any) -> None:
    async def refuses(requests: Any, context: Any) -> Any:
        async for request in requests:
            yield request
            raise errors.InvalidField("message", "no")

    running = call(await serve(bidi=refuses)).method("bidi")(timeout=60)
    await running.write(ItemError(message="a"))
    assert (await running.read()).message == "a"
    with pytest.raises(grpc.RpcError) as failed:
        await running.read()
    assert errors.from_rpc_error(failed.value).field == "message"


@pytest.mark.parametrize("timeout", [20.0, None])
@pytest.mark.parametrize("kind", ["server_stream", "client_stream", "bidi"])
async def test_streams_have_a_longest_life(serve: Any, call: Any, kind: str, timeout: float | None) -> None:
    ended: list[str] = []

    async def stays(request: Any, context: Any) -> Any:
        try:
            assert deadline.current().remaining() <= 0.5
            await asyncio.Event().wait()
        finally:
            ended.append(kind)
        yield ItemError()

    async def stays_for_one(request: Any, context: Any) -> ItemError:
        async for _ in stays(request, context):
            pass
        return ItemError()

    behaviour = stays_for_one if kind == "client_stream" else stays
    echo = call(await serve(settings={"max_stream_s": 0.5}, **{kind: behaviour}))
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind, timeout=timeout)
    error = errors.from_rpc_error(failed.value)
    assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_TOO_LONG")
    assert ended == [kind]


async def test_one_answer_is_no_stream(serve: Any, call: Any) -> None:
    seen: dict[str, Any] = {}
    echo = call(await serve(settings={"max_stream_s": 0.1}, **watching(seen)))
    await echo("unary", timeout=20)
    assert seen["deadline"].remaining() > 1


async def test_a_stream_that_its_caller_does_not_read_ends(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "TAKEN_S", 0.2)
    ended = asyncio.Event()

    async def pages(request: Any, context: Any) -> Any:
        try:
            while True:
                yield ItemError(message="x" * 2**20)  # more than a window
        finally:
            ended.set()

    echo = call(await serve(server_stream=pages))
    unread = echo.method("server_stream")(ItemError())
    async with asyncio.timeout(60):
        await ended.wait()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            while await unread.read() is not grpc.aio.EOF:
                pass
    error = errors.from_rpc_error(failed.value)
    assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE")


async def test_a_stream_may_pause_for_longer_than_its_caller_may(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "TAKEN_S", 1.0)

    async def slow(request: Any, context: Any) -> Any:
        yield ItemError(message="one")
        await asyncio.sleep(2.2)
        yield ItemError(message="two")

    echo = call(await serve(server_stream=slow))
    assert [one.message async for one in echo.method("server_stream")(ItemError())] == ["one", "two"]
