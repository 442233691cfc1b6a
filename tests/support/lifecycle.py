"""A service that has nothing to load."""

from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import Registration, Service


class Idle(Service):
    """Serves what it is given."""

    def __init__(self, *registrations: Registration, readiness: Readiness | None = None) -> None:
        self.registrations, self.readiness = registrations, readiness

    async def start(self) -> None:
        """Load nothing."""

    async def stop(self) -> None:
        """Release nothing."""
