"""Memory of bodies: what is held of requests until they are answered, and of replies until they are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenmesh.wire.errors import MeshError
from evenmesh_gateway.http.events import HungUpError
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.security import caller as callers

FREE_BYTES: Final = 65_536
"""Size up to which a body counts nothing: what the server holds of a connection anyway. Bytes."""

EXPANSION: Final = 16
"""How many times as large as it comes a compressed body may become, and counts."""
_WHOLE: Final = frozenset({b"application/json", b"application/proto", b"application/problem+json"})
"""Media types of responses whose body comes at once."""

Admit = Callable[[int], AbstractAsyncContextManager[object]]
"""Holds memory within a block. Bytes."""


class PieceMemory(AbstractAsyncContextManager["PieceMemory"]):
    """The memory of a piece of a body that is not whole yet; left as a context, none is held.

    Args:
        admit: holds it.
    """

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._held = AsyncExitStack()
        self._counted = 0

    async def hold(self, size: int) -> None:
        """Hold memory of a piece of which so much is here; another piece begins where that is less. Bytes.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; it does not fit.
        """
        if size < self._counted // 2:
            await self._held.aclose()
            self._counted = 0
        if size > max(FREE_BYTES, self._counted):
            wanted = max(size, 2 * self._counted)
            await self._held.enter_async_context(self._admit(wanted - self._counted))
            self._counted = wanted

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hold nothing any more."""
        await self._held.aclose()


class BodyMemory:
    """Middleware that admits the memory of a larger body before more of it is read.

    It is held until the request is answered, as the body, or what was made of it, is sent on. A body that
    passes piece by piece counts where its pieces are read: :class:`PieceMemory`. A request that does not fit
    fails with RESOURCE_EXHAUSTED.

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
        come, factor = 0, expansion(scope)
        async with PieceMemory(self._memory.admit) as memory:

            async def receiving() -> Message:
                nonlocal come
                message = await receive()
                if message["type"] == "http.request" and not _passes(scope):
                    come += factor * len(message.get("body", b""))
                    if come > FREE_BYTES:
                        # All that is announced at once: bodies that are half here would wait for each other.
                        await memory.hold(max(come, factor * _announced(scope)))
                return message

            await self._app(scope, receiving, send)


class ReplyMemory:
    """Middleware that admits the memory of a larger reply, and holds it until the client has read it.

    The server would take any reply at once, and keep it for a client that does not read. So a larger one is
    given to it in pieces, of which each waits until there is room for it on the connection. A reply that does
    not fit fails with RESOURCE_EXHAUSTED; an event of a stream that has begun ends the stream.

    Args:
        app: what answers.
        memory: admits it, by tenant. Bytes.
        knows_callers: whether callers are known here. What strangers may read is the same for all, and takes
            no memory of its own.
    """

    def __init__(self, app: ASGIApp, memory: Admission, *, knows_callers: bool) -> None:
        self._app = app
        self._memory = memory
        self._knows_callers = knows_callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin: Message | None = None
        begun = False
        refused: MeshError | None = None

        async def sending(message: Message) -> None:
            nonlocal begin, refused
            if refused is not None:
                return
            if message["type"] == "http.response.start" and _is_whole(message):
                begin = message  # until it is known whether the body fits
                return
            if message["type"] != "http.response.body":
                await passing(message)
                return
            body = message.get("body", b"")
            if len(body) <= FREE_BYTES:
                await passing(message)
            elif self._knows_callers and callers.current() is callers.ANYONE:
                await in_pieces(message, body)
            else:
                try:
                    async with self._memory.admit(len(body)):
                        await in_pieces(message, body)
                except MeshError as error:
                    if begun:
                        raise HungUpError from error
                    refused = error  # raised below, as an application may take this for a lost connection

        async def passing(message: Message) -> None:
            nonlocal begin, begun
            begun = True
            if begin is not None:
                head, begin = begin, None
                await send(head)
            await send(message)

        async def in_pieces(message: Message, body: bytes) -> None:
            for at in range(0, len(body), FREE_BYTES):
                await passing({**message, "body": body[at : at + FREE_BYTES], "more_body": True})
            # Waits until the last piece but a little is on its way.
            await passing({**message, "body": b""})

        await self._app(scope, receive, sending)
        if refused is not None:
            raise refused


def _is_whole(start: Message) -> bool:
    """Return whether the body of a response comes at once; of a stream the head must not wait for it."""
    media = next((value for name, value in start["headers"] if name.lower() == b"content-type"), b"")
    return media.partition(b";")[0] in _WHOLE


def _passes(scope: Scope) -> bool:
    route = scope.get("route")
    return isinstance(route, GatewayRoute) and route.passes


def expansion(scope: Scope) -> int:
    """Return how many times as large as it comes a body counts, by what its headers say of compression."""
    names = (b"content-encoding", b"connect-content-encoding", b"grpc-encoding")
    given = (value for name, value in scope["headers"] if name in names)
    return EXPANSION if any(value != b"identity" for value in given) else 1


def _announced(scope: Scope) -> int:
    """Return the length that the headers say, 0 for none. Bytes."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(value) if value.isdigit() else 0
