"""The messages of a stream: turns wait for each other, a cancellation hits the turn that was meant."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator

import grpc
import pytest

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError
from evenmesh_orchestrator.conversations.stream import MAX_WAITING, Inbox

pytestmark = pytest.mark.asyncio


def turn(question: str) -> pb.ConverseRequest:
    return pb.ConverseRequest(ask=pb.AskRequest(question=question))


CANCEL = pb.ConverseRequest(cancel=True)


async def sent(*messages: pb.ConverseRequest) -> AsyncIterator[pb.ConverseRequest]:
    for message in messages:
        yield message


async def never() -> AsyncGenerator[int, None]:
    await asyncio.Event().wait()
    yield 0


async def some() -> AsyncGenerator[int, None]:
    for number in range(3):
        yield number


async def test_turns_come_in_their_order_and_then_nothing() -> None:
    inbox = Inbox()
    await inbox.fill(sent(turn("one"), turn("two")))
    first, second = await inbox.next(), await inbox.next()
    assert first is not None
    assert second is not None
    assert (first.ask.question, second.ask.question) == ("one", "two")
    assert await inbox.next() is None


async def test_a_cancellation_hits_the_turn_under_way_and_no_other() -> None:
    inbox = Inbox()
    await inbox.fill(sent(turn("one"), turn("two")))
    await inbox.next()
    await inbox.fill(sent(CANCEL))
    with pytest.raises(MeshError) as caught:
        async for _ in inbox.until_cancelled(never()):
            pass
    assert caught.value.reason == "TURN_CANCELLED"
    await inbox.next()
    assert [number async for number in inbox.until_cancelled(some())] == [0, 1, 2]


async def test_a_cancellation_before_its_turn_is_taken_up_hits_it_and_one_without_a_turn_hits_nothing() -> (
    None
):
    inbox = Inbox()
    await inbox.fill(sent(CANCEL, turn("one"), CANCEL, turn("two")))
    await inbox.next()
    with pytest.raises(MeshError):
        async for _ in inbox.until_cancelled(never()):
            pass
    await inbox.next()
    assert [number async for number in inbox.until_cancelled(some())] == [0, 1, 2]


async def test_too_many_turns_at_once_are_refused() -> None:
    inbox = Inbox()
    await inbox.fill(sent(*[turn("more")] * (MAX_WAITING + 1)))
    for _ in range(MAX_WAITING):
        await inbox.next()
    with pytest.raises(MeshError) as caught:
        await inbox.next()
    assert caught.value.reason == "TOO_MANY_TURNS"


async def test_turns_that_wait_are_counted_until_they_run_or_the_stream_ends() -> None:
    held: list[int] = []

    def hold(size: int) -> None:
        if sum(held) + size > 100:
            raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "CONVERSATIONS_TOO_LARGE", "too large")
        held.append(size)

    inbox = Inbox(hold)
    await inbox.fill(sent(turn("a" * 30), turn("b" * 30), turn("c" * 90), turn("d")))
    assert sum(held) > 60
    assert await inbox.next() == turn("a" * 30)
    inbox.drop()
    assert sum(held) == 0

    refused = Inbox(hold)
    await refused.fill(sent(turn("c" * 101)))
    with pytest.raises(MeshError, match="too large"):
        await refused.next()
    assert sum(held) == 0


async def test_turns_that_wait_are_kept_serialized() -> None:
    """Read, a turn of empty passages takes forty times its bytes, which the count would miss."""
    waiting, other = turn("one"), turn("one")
    inbox = Inbox()
    await inbox.fill(sent(waiting))
    assert sys.getrefcount(waiting) == sys.getrefcount(other)
    assert await inbox.next() == waiting
