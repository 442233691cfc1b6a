"""Streams of gRPC's own services, which clients keep open for as long as the server runs."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from evenmesh.wire.errors import Overloaded
from evenmesh_kit.rpc.handlers import RUNTIME, Behaviour, Context, Handler, HandlerInterceptor
from evenmesh_kit.rpc.statuses import abort

_MOST: Final = 200


class RuntimeStreams(HandlerInterceptor):
    """Bounds the health watches and reflection streams, and ends them before a drain waits for them.

    They need no credential, so that a process has at most 200 of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[asyncio.Task[Any]] = set()

    def end(self) -> None:
        """End the running streams with status OK."""
        for task in self._running:
            task.cancel()

    def covers(self, method: str) -> bool:
        return method.startswith(RUNTIME)

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        if not handler.response_streaming:
            return behaviour

        async def watching(request: Any, context: Context) -> None:
            if len(self._running) >= _MOST:
                await abort(context, Overloaded(f"{_MOST} streams of {method} and its like are open", 1.0))
            task = asyncio.ensure_future(behaviour(request, context))
            self._running.add(task)
            try:
                # Not awaited directly: cancelling it ends the stream normally, cancelling the call does not.
                await asyncio.wait((task,))
            finally:
                self._running.discard(task)
                task.cancel()
            if not task.cancelled():
                task.result()

        return watching
