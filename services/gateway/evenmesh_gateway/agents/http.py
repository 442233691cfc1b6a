"""MCP over streamable HTTP: ``/mcp``, without sessions, so that any replica answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from evenmesh_gateway.agents.tools import agent_server
from evenmesh_gateway.calls import Call, CallReader
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_gateway.methods import PublicMethod

PATH: Final = "/mcp"
_MAX_BODY_BYTES: Final = 2**20
"""Largest message of an agent: its tools take texts of some kilobytes. Bytes."""


class AgentRoutes:
    """Serves MCP; an async context manager, inside which it answers.

    Args:
        call_reader: reads who calls.
        forwarder: makes the calls.
    """

    def __init__(self, call_reader: CallReader, forwarder: Forwarder) -> None:
        self._call_reader = call_reader
        self._server = agent_server(forwarder, self._enter)
        self._manager = _manager(self._server)

    def route(self) -> GatewayRoute:
        """Return the route."""
        return GatewayRoute(PATH, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, once its caller is known."""
        client = scope.get("client")
        peer = f"{client[0]}:{client[1]}" if client else ""
        await self._call_reader.call(Headers(scope=scope), peer=peer)
        await self._manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer while a block runs. Its tasks are of one that lives as long, whoever enters the block."""
        begun, ending = asyncio.Event(), asyncio.Event()

        async def run() -> None:
            async with self._manager.run():
                begun.set()
                await ending.wait()

        runner = asyncio.create_task(run())
        await begun.wait()
        try:
            yield
        finally:
            ending.set()
            await runner

    async def _enter(self, headers: Mapping[str, str], method: PublicMethod) -> Call:
        return await self._call_reader.call(headers, method)


def _manager(server: MCPServer) -> StreamableHTTPSessionManager:
    return StreamableHTTPSessionManager(
        app=server._lowlevel_server,
        stateless=True,
        max_request_body_size=_MAX_BODY_BYTES,
    )
