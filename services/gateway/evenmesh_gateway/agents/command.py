"""The command ``evenmesh mcp``: MCP on standard input and output, for agents that start their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenmesh_gateway.calls import Call
    from evenmesh_gateway.methods import PublicMethod


def mcp() -> None:
    """Serve the mesh to an agent by MCP, on stdin and stdout.

    It calls with EVENMESH_API_KEY or EVENMESH_TOKEN_FILE, as every command does.
    """
    from evenmesh.commands.failure import CommandError
    from evenmesh.wire.errors import MeshError
    from evenmesh.wire.security import ChannelSecurityError

    try:
        asyncio.run(_serve())
    except (ChannelSecurityError, MeshError) as error:
        raise CommandError(str(error)) from error


async def _serve() -> None:
    from evenmesh.addresses import Addresses
    from evenmesh.wire.deadline import Deadline
    from evenmesh.wire.security import ChannelSecurity
    from evenmesh_gateway.agents.tools import agent_server
    from evenmesh_gateway.calls import Call
    from evenmesh_gateway.forwarding import Forwarder
    from evenmesh_gateway.settings import GatewaySettings
    from evenmesh_gateway.upstreams import Upstreams
    from evenmesh_kit.telemetry.setup import Telemetry

    credential = ChannelSecurity.find().credential
    targets = {f"{name}_target": address for name, address in Addresses.find().items()}
    settings = GatewaySettings(**targets)  # type: ignore[arg-type]
    upstreams = Upstreams(settings, Telemetry.disabled())

    async def enter(headers: Mapping[str, str], method: PublicMethod) -> Call:
        del headers, method
        return Call(Deadline.after(settings.default_deadline_s), credential.metadata())

    try:
        await agent_server(Forwarder(upstreams, settings), enter).run_stdio_async()
    finally:
        await upstreams.close()
