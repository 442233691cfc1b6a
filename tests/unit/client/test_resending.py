"""Which calls are sent again after a server rejected them."""

# ruff: noqa: N802 - gRPC names methods as the contract does

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from evenmesh import AsyncClient, Client, Done
from evenmesh.common.v1 import common_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from evenmesh.resending import Resending
from evenmesh.wire.errors import MeshError, Overloaded, Unavailable, restored
from evenmesh_kit.rpc.statuses import abort

AWAY = Unavailable("SHUTTING_DOWN", "the service is shutting down")


@pytest.mark.parametrize("error", [AWAY, Unavailable("UNREACHABLE", "no orchestrator answers")])
def test_a_rejected_call_is_sent_again_after_pauses_that_double_and_not_for_ever(error: MeshError) -> None:
    resending = Resending(60)
    pauses = []
    while resending.allows(error):
        pauses.append(resending.pause_s)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8], rel=0.21)
    assert pauses != [0.05, 0.1, 0.2, 0.4, 0.8], "callers that failed together come back one by one"


def test_a_server_that_starts_or_ends_is_waited_for_in_bounded_pauses() -> None:
    resending = Resending(600)
    pauses = [resending.pause_s for _ in range(30) if resending.allows(AWAY, patient=True)]
    assert len(pauses) == 30
    assert max(pauses) <= 2.4
    broken = Unavailable("UNREACHABLE", "no orchestrator answers")
    assert [resending.allows(broken, patient=True) for _ in range(6)] == [True] * 5 + [False]


def test_a_retry_delay_is_the_least_pause_and_fits_or_ends_the_call() -> None:
    asked = restored(grpc.StatusCode.UNAVAILABLE, "STARTING", "the service is still starting", None, 5.0)
    resending = Resending(60)
    assert resending.allows(asked)
    assert resending.pause_s == 5.0
    assert not Resending(4).allows(asked, patient=True)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("CUT_SHORT", "the service stopped before the call ended"),  # it had begun
        Overloaded("too much work", 0.01),
        MeshError(grpc.StatusCode.INTERNAL, "INTERNAL", "internal error"),
    ],
)
def test_a_call_that_may_have_begun_is_not_sent_again(error: MeshError) -> None:
    assert not Resending(60).allows(error)
    assert not Resending(60).allows(error, patient=True)


def test_a_call_that_has_begun_is_not_sent_again() -> None:
    resending = Resending(60)
    resending.begun = True
    assert not resending.allows(AWAY)


def test_who_kept_all_replies_back_begins_again_once_where_the_connection_broke() -> None:
    resending = Resending(60, whole=True)
    broken = Unavailable("UNREACHABLE", "no orchestrator answers")
    resending.begun = True
    assert not resending.allows(AWAY)
    assert resending.allows(broken)
    assert not resending.begun
    assert resending.allows(broken), "before its first reply, as any other call"
    resending.begun = True
    assert not resending.allows(broken)


def test_a_call_without_time_left_is_not_sent_again() -> None:
    assert not Resending(0.01).allows(AWAY)


class Leaving(pb_grpc.OrchestratorServiceServicer):
    """Rejects every second call, and breaks off a call that asks for it after its first event."""

    def __init__(self) -> None:
        self.calls = 0

    async def Ask(self, request: pb.AskRequest, context: Any) -> AsyncIterator[pb.AskResponse]:
        self.calls += 1
        if self.calls % 2:
            await abort(context, AWAY)
        yield pb.AskResponse(retrieved=pb.Retrieved())
        if request.question == "broken":
            await abort(context, AWAY)
        yield pb.AskResponse(done=pb.Done())

    async def Audit(self, request: pb.AuditRequest, context: Any) -> AsyncIterator[pb.AuditResponse]:
        async for one in self.Ask(request.ask, context):
            yield pb.AuditResponse(
                **{name.name: value for name, value in one.ListFields() if name.name == "done"}
            )


@pytest.mark.parametrize("method", ["ask", "audit"])
async def test_both_clients_send_a_rejected_call_again(method: str) -> None:
    server, servicer = grpc.aio.server(), Leaving()
    pb_grpc.add_OrchestratorServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    about: dict[str, Any] = {"useful": ["p"]} if method == "audit" else {}
    async with AsyncClient(address, timeout=30) as client:
        *_, last = [event async for event in getattr(client, method)("whole", **about)]
        assert (isinstance(last, Done), servicer.calls) == (True, 2)
        with pytest.raises(Unavailable):
            _ = [event async for event in client.ask("broken")]
    with Client(address, timeout=30) as sync:
        *_, last = await asyncio.to_thread(list, getattr(sync, method)("whole", **about))
    assert (isinstance(last, Done), servicer.calls) == (True, 6)
    await server.stop(0)


@pytest.mark.parametrize("breaks", [1, 2])
async def test_a_whole_answer_is_asked_for_again_where_the_connection_breaks_within_it(breaks: int) -> None:
    """Without what came before the break; the server is cut off after its first event."""
    server, cut = grpc.aio.server(), asyncio.Event()

    class Ending(pb_grpc.OrchestratorServiceServicer):
        calls = 0

        async def Ask(self, request: pb.AskRequest, context: Any) -> AsyncIterator[pb.AskResponse]:
            self.calls += 1
            yield pb.AskResponse(delta=pb.Delta(text="x"))
            yield pb.AskResponse(degraded=common_pb2.Degradation(reason=f"CALL_{self.calls}"))
            if self.calls <= breaks:
                cut.set()
                await asyncio.Event().wait()
            yield pb.AskResponse(done=pb.Done(ask_id="a"))

    servicer = Ending()
    pb_grpc.add_OrchestratorServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    open_writers: list[asyncio.StreamWriter] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()

    async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", port)
        open_writers.append(writer)
        pipes.extend((asyncio.create_task(pipe(reader, to)), asyncio.create_task(pipe(there, writer))))

    async def break_off() -> None:
        while True:
            await cut.wait()
            cut.clear()
            await asyncio.sleep(0.2)  # the events are on their way
            for writer in open_writers:
                writer.transport.abort()
            open_writers.clear()

    pipes: list[asyncio.Task[None]] = []
    gate = await asyncio.start_server(front, "127.0.0.1", 0)
    breaking = asyncio.create_task(break_off())
    try:
        async with AsyncClient("{}:{}".format(*gate.sockets[0].getsockname()), timeout=60) as client:
            if breaks == 1:
                found = await client.answer("whole")
                assert [one.reason for one in found.degradations] == ["CALL_2"]
                assert found.done is not None
            else:
                with pytest.raises(Unavailable):
                    await client.answer("whole")
        assert servicer.calls == 2
    finally:
        gate.close()
        for task in (breaking, *pipes):
            task.cancel()
        await asyncio.gather(breaking, *pipes, return_exceptions=True)
        await server.stop(0)


async def test_a_successor_that_answers_slowly_is_found() -> None:
    server, servicer = grpc.aio.server(), Leaving()
    servicer.calls = 1  # the next is let in
    pb_grpc.add_OrchestratorServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipes: list[asyncio.Task[None]] = []
    connections = 0

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()

    async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:  # it was waiting at a process that has ended
            writer.transport.abort()
            return
        await asyncio.sleep(0.5)  # the core is busy with something else
        there, to = await asyncio.open_connection("127.0.0.1", port)
        pipes.extend((asyncio.create_task(pipe(reader, to)), asyncio.create_task(pipe(there, writer))))

    gate = await asyncio.start_server(front, "127.0.0.1", 0)
    address = "{}:{}".format(*gate.sockets[0].getsockname())
    async with AsyncClient(address, timeout=30) as client:
        *_, last = [event async for event in client.ask("whole")]
    assert isinstance(last, Done)
    assert connections == 2
    gate.close()
    await asyncio.gather(*pipes)
    await server.stop(0)
