"""How utility or relevance trades off against disparity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragcore.arrays import FloatArray
from ragcore.intervals import TradeoffIntervals, tradeoff_intervals
from ragcore.utility import FairnessIntervals, fairness_intervals
from services.evaluator.evaluation.resampling import Resampling


@dataclass(frozen=True, slots=True)
class TradeoffQuestion:
    """P points of queries, x [P] and y [P] with ``nan`` for undefined; ``baseline`` is the mean y of the
    deterministic system, where the five levels of fairness are wanted."""

    queries: Sequence[str]
    x: FloatArray
    y: FloatArray
    resampling: Resampling
    baseline: float | None


@dataclass(frozen=True, slots=True)
class TradeoffMeasured:
    """The curve, and its values at five levels of fairness where there is a baseline."""

    curve: TradeoffIntervals
    levels: FairnessIntervals | None


def tradeoff(question: TradeoffQuestion, check: Callable[[], None]) -> TradeoffMeasured:
    """Slope, area and levels of a tradeoff ("Towards Fair RAG", section 5).

    Args:
        question: the points.
        check: called again and again; what it raises ends the computation.

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    resampling = question.resampling
    curve = tradeoff_intervals(
        question.queries,
        question.x,
        question.y,
        level=resampling.level,
        method=resampling.method,
        num_resamples=resampling.num_resamples,
        rng=resampling.seed,
        check=check,
    )
    if question.baseline is None:
        return TradeoffMeasured(curve, None)
    return TradeoffMeasured(curve, fairness_intervals(question.x, question.y, question.baseline))
