"""The streams of gRPC's own services, which their clients leave open for as long as the server runs."""

from __future__ import annotations

import asyncio
from typing import Any

from meshkit.handlers import RUNTIME, Context, Handler, HandlerInterceptor, behaviour_of, with_behaviour


class Watchers(HandlerInterceptor):
    """Ends health's watchers and reflection's streams when told, so that no drain waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[asyncio.Task[Any]] = set()

    def end(self) -> None:
        """Ends those running now with status OK."""
        for task in self._running:
            task.cancel()

    def covers(self, method: str) -> bool:
        return method.startswith(RUNTIME)

    def wrap(self, method: str, handler: Handler) -> Handler:
        if not handler.response_streaming:
            return handler
        behaviour = behaviour_of(handler)

        async def watching(request: Any, context: Context) -> None:
            task = asyncio.ensure_future(behaviour(request, context))
            self._running.add(task)
            try:
                # Not awaited itself: its cancellation here is an end, the call's is the caller's.
                await asyncio.wait((task,))
            finally:
                self._running.discard(task)
                task.cancel()
            if not task.cancelled():
                task.result()

        return with_behaviour(handler, watching)
