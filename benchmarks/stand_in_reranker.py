"""The real reranker service with a scorer that answers at once, so that only the service itself is timed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.stand_in import StandInService, serve_stand_in
from evenmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run
from evenmesh_kit.rpc.server import Registration
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.domain import Agent, Best, LearnedModel, Passage, Scores
from evenmesh_reranker.engine import Reranking
from evenmesh_reranker.metrics import RerankerMetrics
from evenmesh_reranker.servicer import RERANKER, RerankerServicer
from evenmesh_reranker.settings import RerankerSettings


class StandIn:
    """A scorer of no cost: the order that came in."""

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        return Scores(tuple(1 / rank for rank in range(1, len(passages) + 1)), "v1")

    def models(self) -> list[LearnedModel]:
        return []


async def main(scorer: StandIn | None = None) -> None:
    """Serve until stopped, with another scorer if it is given one."""

    def around(settings: RerankerSettings, telemetry: Telemetry, pool: TenantPool) -> StandInService:
        # The stand-in goes by the name that asks use by default, now and before.
        servicer = RerankerServicer(Admission(settings.max_work, "pairs"), pool)
        registration = Registration(add_RerankerServiceServicer_to_server, servicer, RERANKER)
        metrics, chosen = RerankerMetrics(telemetry), scorer or StandIn()
        names = ("cross-encoder", "rankrag")
        reranking = Reranking({name: metrics.reranker(name, chosen) for name in names}, names[0], pool)
        return StandInService([registration], partial(servicer.open, reranking), pool)

    await serve_stand_in("reranker", RerankerSettings, around)


if __name__ == "__main__":
    sys.exit(run(main))
