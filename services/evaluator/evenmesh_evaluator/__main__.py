"""Run the evaluator: ``python -m evenmesh_evaluator``."""

from __future__ import annotations

import sys
from datetime import timedelta

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import Quotas
from evenmesh_evaluator.engine import Evaluator
from evenmesh_evaluator.metrics import EvaluatorMetrics
from evenmesh_evaluator.observations.consumer import LogConsumer
from evenmesh_evaluator.observations.retention import Retention
from evenmesh_evaluator.observations.servicer import measure_payload
from evenmesh_evaluator.servicer import EvaluatorServicer
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_evaluator.statements.signing import Signer, SigningKeyError
from evenmesh_evaluator.statements.summary import Privacy
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run_service
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.server import Registration, Service
from evenmesh_kit.settings import variable
from evenmesh_kit.storage.opening import opened
from evenmesh_kit.storage.tenant_log import LogSettingError, RedisLog
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_lab.similarities import Models, Similarities

NAME = pb.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
"""Full name of the service."""


class EvaluatorService(Service):
    """One evaluator process: its parts and its lifecycle.

    Args:
        settings: the settings.
        telemetry: records observations and fairness.
    """

    def __init__(self, settings: EvaluatorSettings, telemetry: Telemetry | None = None) -> None:
        self._settings = settings
        telemetry = telemetry or Telemetry.disabled()
        admission = Admission.from_settings(settings, "KiB")
        AdmissionMetrics(telemetry, admission)
        self._store = SqlObservationStore(
            settings.database(),
            lock_timeout_s=settings.lock_timeout_s,
            quotas=Quotas(settings.tenant_mb * 2**20, settings.tenant_runs, settings.tenant_configurations),
            provider_days=settings.provider_days,
            remeasure=measure_payload,
        )
        days = settings.observation_days
        self._retention = None if days is None else Retention(self._store, timedelta(days=days))
        self._pool = TenantPool(settings.compute_threads, "evaluator")
        self._evaluator = Evaluator(self._store, commit_size=settings.commit_size)
        self._measures_pool = TenantPool(settings.measures_threads, "evaluator-measures")
        metrics = EvaluatorMetrics(
            telemetry, window_s=settings.fairness_window_s, series=settings.metrics_series
        )
        # Statements can wait: observations, and asks on the same machine, cannot.
        self._statements_pool = TenantPool(1, "evaluator-statements", nice=10)
        servicer = EvaluatorServicer(
            self._evaluator,
            pool=self._pool,
            measures_pool=self._measures_pool,
            statements_pool=self._statements_pool,
            similarities=Similarities(_models(settings)),
            admission=admission,
            window=settings.observe_window,
            store=self._store,
            signer=_signer(settings),
            privacy=Privacy(settings.statement_min_asks, settings.statement_epsilon),
            metrics=metrics,
        )
        self._consumer = consumer = _consumer(settings, servicer)
        if consumer is not None:
            metrics.watch_log(lambda: consumer.waiting)
        self.registrations = [Registration(pb_grpc.add_EvaluatorServiceServicer_to_server, servicer, NAME)]

    async def start(self) -> None:
        """Open the store, and take observations of the log. Raises ServerStartError without the store."""
        await opened(self._settings, self._store.open)
        if self._retention is not None:
            self._retention.start()
        if self._consumer is not None:
            self._consumer.start()

    async def stop(self) -> None:
        """Store pending observations and close the store."""
        if self._retention is not None:
            await self._retention.stop()
        if self._consumer is not None:
            await self._consumer.stop()
        await self._evaluator.close()
        await self._store.close()
        self._pool.close()
        self._measures_pool.close()
        self._statements_pool.close()


def _signer(settings: EvaluatorSettings) -> Signer | None:
    """Return the signer of statements; raise ServerStartError for a key that cannot be used."""
    if settings.statement_key is None:
        return None
    try:
        return Signer(settings.statement_key)
    except SigningKeyError as error:
        raise ServerStartError(f"{variable(settings, 'statement_key')}: {error}") from error


def _consumer(settings: EvaluatorSettings, servicer: EvaluatorServicer) -> LogConsumer | None:
    """Return what takes observations from the log; raise ServerStartError for a log that cannot be used."""
    if not settings.observation_log:
        return None
    name = variable(settings, "observation_log")
    try:
        log = RedisLog(settings.observation_log, "observations", max_entries=1, variable=name)
    except LogSettingError as error:
        raise ServerStartError(str(error)) from None
    return LogConsumer(log, servicer.store_observation)


def _models(settings: EvaluatorSettings) -> Models:
    """Return the models of similarities, each named by its environment variable."""
    kinds = ("embedding", "bert_score", "nli", "answer_equivalence")
    return Models(
        embedding=settings.embedding_model,
        bert_score=settings.bert_score_model,
        nli=settings.nli_model,
        answer_equivalence=settings.answer_equivalence_model,
        called={kind: variable(settings, f"{kind}_model") for kind in kinds},
        threads=settings.model_threads,
    )


if __name__ == "__main__":
    sys.exit(run_service("evaluator", EvaluatorSettings, EvaluatorService))
