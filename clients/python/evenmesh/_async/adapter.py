"""What differs between grpc.aio and grpc, on the side of grpc.aio; ``_sync/adapter.py`` is the other side."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from evenmesh.wire import channel

A = TypeVar("A")
T = TypeVar("T")

Channel: TypeAlias = grpc.aio.Channel
UnaryCall: TypeAlias = grpc.aio.UnaryUnaryMultiCallable
INTERRUPTED: Final = asyncio.CancelledError
"""Raised in a call that nobody waits for any more."""

connect = channel.connect
sleep = asyncio.sleep


async def at_once(call: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T]:
    """Make one call for each argument, all at once; return the results in the order of the arguments."""
    return await asyncio.gather(*map(call, arguments))


class Stream:
    """A call that sends and receives messages, one at a time.

    Args:
        method: method of a stub.
        timeout: seconds the call may take.
    """

    def __init__(self, method: Any, timeout: float) -> None:
        self._call = method(timeout=timeout)

    async def write(self, message: Any) -> None:
        """Send a message.

        Raises:
            grpc.RpcError: the call failed.
        """
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:
            # The call is over already; reading says why.
            return

    async def read(self) -> Any:
        """Return the next message; None at the end.

        Raises:
            grpc.RpcError: the call failed.
        """
        message = await self._call.read()
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
