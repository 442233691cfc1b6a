"""A service in the test's own process, put together as its process does it."""

from __future__ import annotations

from typing import Any

from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry


def server_of(name: str, settings: ServiceSettings, service: Any) -> MeshServer:
    """Return the server of a service, such as ``RerankerService``, without telemetry."""
    return MeshServer(
        name,
        settings,
        service.registrations,
        service,
        telemetry=Telemetry.disabled(),
        readiness=service.readiness,
    )
