"""Rankings against judgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragcore.arrays import FloatArray
from ragcore.ranking_metrics import RankingMetrics, ranking_metrics
from services.evaluator.domain import Estimate
from services.evaluator.moments import Moments


@dataclass(frozen=True, slots=True)
class RankingsQuestion:
    """For each query its ranking and the grades of passages, in the same order; cut at k."""

    rankings: Mapping[str, Sequence[str]]
    judgements: Mapping[str, Mapping[str, int]]
    k: int


@dataclass(frozen=True, slots=True)
class RankingsMeasured:
    """Metrics of each query, and their means with 95 % intervals by the metric's name."""

    queries: RankingMetrics
    means: Mapping[str, Estimate]


def ranking_quality(question: RankingsQuestion) -> RankingsMeasured:
    """nDCG, reciprocal rank, recall and precision at k, as trec_eval has them.

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    metrics = ranking_metrics(question.rankings, question.judgements, k=question.k)
    means = {name: _estimate(getattr(metrics, name)) for name in metrics.means()}
    return RankingsMeasured(metrics, means)


def _estimate(values: FloatArray) -> Estimate:
    return Moments.of(None if value != value else value for value in values.tolist()).estimate(0.0, 1.0)
