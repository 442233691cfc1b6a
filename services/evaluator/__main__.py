"""Runs the evaluator: ``python -m services.evaluator``."""

from __future__ import annotations

import sys

from meshkit import logs
from meshkit.admission import Admission
from meshkit.admission_metrics import AdmissionMetrics
from meshkit.compute import ComputePool
from meshkit.errors import Unavailable
from meshkit.server import Registration, ServerStartError, run, serve
from meshkit.settings import load, variable
from meshkit.telemetry import Telemetry
from raglab.similarities import Models, Similarities
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from services.evaluator import observing
from services.evaluator.backends.sql import SqlObservationStore
from services.evaluator.engine import Evaluator
from services.evaluator.metrics import EvaluatorMetrics
from services.evaluator.servicer import EvaluatorServicer
from services.evaluator.settings import EvaluatorSettings

NAME = pb.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
"""Full name of the service."""


class EvaluatorService:
    """Everything of one evaluator process, put together; also its lifecycle.

    Args:
        settings: the settings.
        telemetry: what is recorded of observations and of fairness.
    """

    def __init__(self, settings: EvaluatorSettings, telemetry: Telemetry | None = None) -> None:
        self._settings = settings
        telemetry = telemetry or Telemetry.disabled()
        admission = Admission(settings.max_work, "KiB", queue_s=settings.queue_s)
        AdmissionMetrics(telemetry, admission)
        self._store = SqlObservationStore(
            settings.database(), lock_timeout_s=settings.lock_timeout_s, remeasure=observing.read_again
        )
        self._pool = ComputePool(settings.compute_threads, "evaluator")
        self._evaluator = Evaluator(self._store, commit_size=settings.commit_size)
        self._measuring_pool = ComputePool(settings.measuring_threads, "evaluator-measuring")
        servicer = EvaluatorServicer(
            self._evaluator,
            pool=self._pool,
            measuring_pool=self._measuring_pool,
            similarities=Similarities(_models(settings)),
            admission=admission,
            window=settings.observe_window,
            metrics=EvaluatorMetrics(
                telemetry, window_s=settings.fairness_window_s, series=settings.metrics_series
            ),
        )
        self.registrations = [Registration(pb_grpc.add_EvaluatorServiceServicer_to_server, servicer, NAME)]

    async def start(self) -> None:
        """Opens the store. Raises ServerStartError when it cannot be used."""
        try:
            await self._store.open()
        except Unavailable as error:
            name = variable(self._settings, "database_url" if self._settings.database_url else "home")
            raise ServerStartError(f"{error.message}: set {name} to a place that can be written") from error

    async def stop(self) -> None:
        """Stores what is waiting and closes the store."""
        await self._evaluator.close()
        await self._store.close()
        self._pool.close()
        self._measuring_pool.close()


def _models(settings: EvaluatorSettings) -> Models:
    """The models of similarities, each called by its environment variable."""
    kinds = ("embedding", "bert_score", "nli", "answer_equivalence")
    return Models(
        embedding=settings.embedding_model,
        bert_score=settings.bert_score_model,
        nli=settings.nli_model,
        answer_equivalence=settings.answer_equivalence_model,
        called={kind: variable(settings, f"{kind}_model") for kind in kinds},
        threads=settings.model_threads,
    )


async def main() -> None:
    """Serves until told to stop."""
    settings = load(EvaluatorSettings)
    logs.configure("evaluator", settings)
    telemetry = Telemetry.from_settings("evaluator", settings)
    service = EvaluatorService(settings, telemetry)
    await serve("evaluator", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
