"""The evaluator on the wire."""

from __future__ import annotations

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from raglab.similarities import Similarities
from services.evaluator.engine import Evaluator
from services.evaluator.measuring import MeasuringServicer
from services.evaluator.metrics import EvaluatorMetrics
from services.evaluator.observing import ObservingServicer


class EvaluatorServicer(ObservingServicer, MeasuringServicer):
    """Serves ``ragmesh.evaluator.v1.EvaluatorService``.

    Args:
        evaluator: the engine.
        pool: threads for what of an observation is too large to compute on the event loop.
        measuring_pool: threads for what callers bring.
        similarities: how alike answers are, by name.
        admission: counts KiB of requests and observations in flight.
        window: observations of one stream that may be on their way to disk. Observations, [1, inf).
        metrics: told what becomes of observations; None records nothing.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        pool: ComputePool,
        measuring_pool: ComputePool,
        similarities: Similarities,
        admission: Admission,
        window: int,
        metrics: EvaluatorMetrics | None = None,
    ) -> None:
        ObservingServicer.__init__(
            self, evaluator, pool=pool, admission=admission, window=window, metrics=metrics
        )
        MeasuringServicer.__init__(self, similarities, pool=measuring_pool, admission=admission)
