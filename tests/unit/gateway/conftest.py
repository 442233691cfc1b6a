"""A gateway in this process, before the scripted mesh."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from evenmesh_gateway.app import Gateway
from evenmesh_gateway.http.server import HttpServer
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.scripted import ScriptedMesh

Open = Callable[..., Awaitable[httpx.AsyncClient]]


@asynccontextmanager
async def opening(scripted: ScriptedMesh, folder: Path) -> AsyncIterator[Open]:
    """Give what starts a gateway with further settings, and returns a client of it."""
    async with AsyncExitStack() as stack:

        async def opened(telemetry: Telemetry | None = None, **changes: Any) -> httpx.AsyncClient:
            targets = {f"{name}_target": address for name, address in scripted.addresses.items()}
            settings = GatewaySettings(**{"home": folder, "port": 0, "grace_s": 5, **targets, **changes})
            gateway = Gateway(settings, telemetry or Telemetry.disabled())
            await gateway.start()
            server = HttpServer(gateway.app, settings)
            await server.start()
            stack.push_async_callback(gateway.close)
            stack.push_async_callback(server.stop)
            client = httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60)
            client.server = server  # type: ignore[attr-defined]
            client.gateway = gateway  # type: ignore[attr-defined]
            return await stack.enter_async_context(client)

        yield opened


@pytest.fixture
async def open_gateway(scripted: ScriptedMesh, tmp_path: Path) -> AsyncIterator[Open]:
    """Starts a gateway with further settings, and gives a client of it."""
    async with opening(scripted, tmp_path) as opened:
        yield opened


@pytest.fixture
async def gateway(open_gateway: Open) -> httpx.AsyncClient:
    """A client of a gateway."""
    return await open_gateway()
