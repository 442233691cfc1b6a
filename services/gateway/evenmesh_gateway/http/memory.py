"""Memory of bodies: what is held of requests until they are answered."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_kit.admission.queue import Admission

_FREE_BYTES: Final = 65_536
"""Size up to which a body counts nothing: what the server holds of a connection anyway. Bytes."""


class BodyMemory:
    """Middleware that admits the memory of a larger body before more of it is read.

    It is held until the request is answered, as the body, or what was made of it, is sent on. A body that
    passes piece by piece holds none (:attr:`~evenmesh_gateway.http.web.GatewayRoute.passes`). A request that
    does not fit fails with RESOURCE_EXHAUSTED.

    Args:
        app: what answers.
        memory: admits it, by tenant. Bytes.
    """

    def __init__(self, app: ASGIApp, memory: Admission) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        come = counted = 0
        async with AsyncExitStack() as held:

            async def receiving() -> Message:
                nonlocal come, counted
                message = await receive()
                if message["type"] == "http.request" and not _passes(scope):
                    come += len(message.get("body", b""))
                    if come > max(_FREE_BYTES, counted):
                        # All that is announced at once: bodies that are half here would wait for each other.
                        wanted = max(come, _announced(scope), 2 * counted)
                        await held.enter_async_context(self._memory.admit(wanted - counted))
                        counted = wanted
                return message

            await self._app(scope, receiving, send)


def _passes(scope: Scope) -> bool:
    route = scope.get("route")
    return isinstance(route, GatewayRoute) and route.passes


def _announced(scope: Scope) -> int:
    """Return the length that the headers say, 0 for none. Bytes."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(value) if value.isdigit() else 0
