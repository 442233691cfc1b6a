"""A call of ``grpc.aio`` that sends and receives messages, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from evenmesh.wire.call_ends import CallEnd


class Stream:
    """Sends and receives the messages of a call; however it ends, reading says how.

    Args:
        call: the call.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._end = CallEnd(call)
        # Unlike ``call.read()``, the iterator reads what came before a write failed, and then the status.
        self._messages = aiter(call)

    async def write(self, message: Any) -> None:
        """Send a message; a call that is over takes none, and reading says why."""
        try:
            await self._call.write(message)
        except (asyncio.InvalidStateError, grpc.RpcError):
            return

    async def read(self) -> Any:
        """Return the next message; None at the end.

        Raises:
            grpc.RpcError: the call failed, with the status that the server sent.
        """
        try:
            return await anext(self._messages, None)
        except grpc.RpcError as raised:
            error = self._end.error(raised)
            if error is None:
                return None
            raise error from None

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
