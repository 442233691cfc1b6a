"""MCP over streamable HTTP: ``/mcp``, without sessions, so that any replica answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from evenmesh_gateway.calls import CallReader
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http.bodies import timely
from evenmesh_gateway.http.web import GatewayRoute

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH: Final = "/mcp"
_MAX_BODY_BYTES: Final = 2**20
"""Largest message of an agent: its tools take texts of some kilobytes. Bytes."""


class AgentRoutes:
    """Serves MCP; an async context manager, inside which it answers.

    The first request loads the package ``mcp``, which takes half of a gateway's start.

    Args:
        call_reader: reads who calls.
        forwarder: makes the calls.
    """

    def __init__(self, call_reader: CallReader, forwarder: Forwarder) -> None:
        self._call_reader = call_reader
        self._forwarder = forwarder
        self._ending = asyncio.Event()
        self._begun: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._runner: asyncio.Task[None] | None = None

    def route(self) -> GatewayRoute:
        """Return the route."""
        return GatewayRoute(PATH, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, once its caller is known."""
        client = scope.get("client")
        peer = f"{client[0]}:{client[1]}" if client else ""
        call = await self._call_reader.call(Headers(scope=scope), peer=peer)
        manager = await self._running_manager()
        await manager.handle_request(scope, timely(receive, lambda: call.deadline), send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer while a block runs."""
        try:
            yield
        finally:
            self._ending.set()
            if self._runner is not None:
                await self._runner

    async def _running_manager(self) -> StreamableHTTPSessionManager:
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_future()
            # Its tasks are of one that lives as long, whoever sends the first request.
            self._runner = asyncio.create_task(self._run(self._begun))
        return await asyncio.shield(self._begun)

    async def _run(self, begun: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = await asyncio.to_thread(self._manager)
            async with manager.run():
                begun.set_result(manager)
                await self._ending.wait()
        except Exception as error:
            if begun.done():
                raise
            self._begun = None  # the next request tries again
            begun.set_exception(error)  # for those who wait

    def _manager(self) -> StreamableHTTPSessionManager:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from evenmesh_gateway.agents.tools import agent_server

        return StreamableHTTPSessionManager(
            app=agent_server(self._forwarder, self._call_reader.call)._lowlevel_server,
            stateless=True,
            max_request_body_size=_MAX_BODY_BYTES,
        )
