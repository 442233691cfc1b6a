"""The evaluator's gRPC service, put together from its parts."""

from __future__ import annotations

from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.engine import Evaluator
from evenmesh_evaluator.measures.servicer import MeasuresServicer
from evenmesh_evaluator.metrics import EvaluatorMetrics
from evenmesh_evaluator.observations.servicer import ObservationsServicer
from evenmesh_evaluator.reports.servicer import ReportsServicer
from evenmesh_evaluator.statements.servicer import StatementsServicer
from evenmesh_evaluator.statements.signing import Signer
from evenmesh_evaluator.statements.summary import Privacy
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_lab.similarities import Similarities


class EvaluatorServicer(ObservationsServicer, ReportsServicer, MeasuresServicer, StatementsServicer):
    """Serves ``evenmesh.evaluator.v1.EvaluatorService``.

    Args:
        evaluator: the engine.
        pool: threads that measure observations too large for the event loop.
        measures_pool: threads that compute the measures of requests.
        statements_pool: threads that compute statements.
        similarities: similarities of answers, by name.
        admission: counts KiB of requests and observations in flight.
        window: observations of one stream that may be on their way to disk. Observations, [1, inf).
        store: what is known of providers, for statements.
        signer: signs statements; None where there is no key.
        privacy: what statements keep to themselves.
        metrics: records what happens to observations; None records nothing.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        pool: TenantPool,
        measures_pool: TenantPool,
        statements_pool: TenantPool,
        similarities: Similarities,
        admission: Admission,
        window: int,
        store: SqlObservationStore,
        signer: Signer | None = None,
        privacy: Privacy | None = None,
        metrics: EvaluatorMetrics | None = None,
    ) -> None:
        ObservationsServicer.__init__(
            self, evaluator, pool=pool, admission=admission, window=window, metrics=metrics
        )
        ReportsServicer.__init__(self, evaluator)
        MeasuresServicer.__init__(self, similarities, pool=measures_pool, admission=admission)
        StatementsServicer.__init__(
            self, store, pool=statements_pool, signer=signer, privacy=privacy or Privacy()
        )
