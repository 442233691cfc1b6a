"""The real reranker service with a scorer that answers at once, so that only the service itself is timed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from meshkit import logs
from meshkit.admission import Admission
from meshkit.server import Registration, run, serve
from meshkit.settings import load
from meshkit.telemetry import Telemetry
from ragmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from services.reranker.domain import Agent, Passage, Scored
from services.reranker.engine import Engine
from services.reranker.servicer import RERANKER_SERVICE, RerankerServicer
from services.reranker.settings import RerankerSettings


class StandIn:
    """A scorer of no cost, under the name the orchestrator asks for by default."""

    name = "rankrag"

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scored:
        return Scored([1 / rank for rank in range(1, len(passages) + 1)], "v1")


class _Service:
    """Lifecycle of the service around the stand-in."""

    def __init__(self, settings: RerankerSettings) -> None:
        self._servicer = RerankerServicer(Admission(settings.max_work, "passages"))
        self.registrations = [
            Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER_SERVICE)
        ]

    async def start(self) -> None:
        self._servicer.open(Engine([StandIn()]))

    async def stop(self) -> None:
        pass


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RerankerSettings)
    logs.configure("reranker", settings)
    service = _Service(settings)
    telemetry = Telemetry.from_settings("reranker", settings)
    await serve("reranker", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
