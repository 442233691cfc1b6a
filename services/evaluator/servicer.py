"""The evaluator on the wire."""

from __future__ import annotations

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from services.evaluator.engine import Evaluator
from services.evaluator.measuring import MeasuringServicer
from services.evaluator.observing import ObservingServicer


class EvaluatorServicer(ObservingServicer, MeasuringServicer):
    """Serves ``ragmesh.evaluator.v1.EvaluatorService``.

    Args:
        evaluator: the engine.
        pool: threads for what is too large to compute on the event loop.
        admission: counts KiB of requests and observations in flight.
        window: observations of one stream that may be on their way to disk. Observations, [1, inf).
    """

    def __init__(self, evaluator: Evaluator, *, pool: ComputePool, admission: Admission, window: int) -> None:
        ObservingServicer.__init__(self, evaluator, pool=pool, admission=admission, window=window)
        MeasuringServicer.__init__(self, pool=pool, admission=admission)
