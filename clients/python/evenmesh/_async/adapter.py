"""What differs between grpc.aio and grpc, on the side of grpc.aio; ``_sync/adapter.py`` is the other side."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from evenmesh.wire import channel, stream

A = TypeVar("A")
T = TypeVar("T")

Channel: TypeAlias = grpc.aio.Channel
UnaryCall: TypeAlias = grpc.aio.UnaryUnaryMultiCallable
INTERRUPTED: Final = asyncio.CancelledError
"""Raised in a call that nobody waits for any more."""

connect = channel.connect


def is_interrupted() -> bool:
    """Return whether the running task was cancelled, and not only its call, as closing a channel does."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


sleep = asyncio.sleep


async def at_once(call: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T]:
    """Make one call for each argument, all at once; return the results in the order of the arguments."""
    return await asyncio.gather(*map(call, arguments))


async def until_ready(channel: Channel, timeout: float) -> bool:
    """Return whether a channel is connected, at the latest after ``timeout`` seconds."""
    try:
        async with asyncio.timeout(timeout):
            await channel.channel_ready()
    except (TimeoutError, grpc.aio.UsageError):  # the latter where it is closed
        return False
    return True


class Stream(stream.Stream):
    """A call that sends and receives messages, one at a time.

    Args:
        method: method of a stub.
        timeout: seconds the call may take.
    """

    def __init__(self, method: Any, timeout: float) -> None:
        super().__init__(method(timeout=timeout))
