"""The real reranker service with a scorer that answers at once, so that only the service itself is timed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from meshkit import logs
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.server import Registration, run, serve
from meshkit.settings import load
from meshkit.telemetry import Telemetry
from ragmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from services.reranker.domain import Agent, Best, LearnedModel, Passage, Scores
from services.reranker.engine import Reranking
from services.reranker.metrics import RerankerMetrics
from services.reranker.servicer import RERANKER, RerankerServicer
from services.reranker.settings import RerankerSettings


class StandIn:
    """A scorer of no cost: the order that came in."""

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        return Scores(tuple(1 / rank for rank in range(1, len(passages) + 1)), "v1")

    def models(self) -> list[LearnedModel]:
        return []


class _Service:
    """Lifecycle of the service around the stand-in, which goes by the name that asks use by default."""

    def __init__(self, settings: RerankerSettings, telemetry: Telemetry) -> None:
        self._metrics = RerankerMetrics(telemetry)
        self._codec_pool = ComputePool(1, "reranker-codec")
        self._servicer = RerankerServicer(Admission(settings.max_work, "pairs"), self._codec_pool)
        self.registrations = [Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER)]

    async def start(self) -> None:
        self._servicer.open(Reranking({"rankrag": self._metrics.reranker("rankrag", StandIn())}, "rankrag"))

    async def stop(self) -> None:
        self._codec_pool.close()


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RerankerSettings)
    logs.configure("reranker", settings)
    telemetry = Telemetry.from_settings("reranker", settings)
    service = _Service(settings, telemetry)
    await serve("reranker", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
