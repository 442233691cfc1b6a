"""Run the real process of a service around a stand-in for its models, so that the service itself is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import serve
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import Registration
from evenmesh_kit.settings import ServiceSettings, load
from evenmesh_kit.telemetry import logs
from evenmesh_kit.telemetry.setup import Telemetry

S = TypeVar("S", bound=ServiceSettings)


@dataclass
class StandInService:
    """What a service registers, and how it is opened with the stand-in."""

    registrations: Sequence[Registration]
    opened: Callable[[], None]
    pool: TenantPool
    readiness: Readiness | None = None

    async def start(self) -> None:
        self.opened()

    async def stop(self) -> None:
        self.pool.close()


async def serve_stand_in(
    name: str, kind: type[S], around: Callable[[S, Telemetry, TenantPool], StandInService]
) -> None:
    """Serve until stopped, with the settings of the service in the environment."""
    settings = load(kind)
    logs.configure(name, settings)
    telemetry = Telemetry.from_settings(name, settings)
    service = around(settings, telemetry, TenantPool(1, f"{name}-codec"))
    await serve(name, settings, service, telemetry=telemetry)
