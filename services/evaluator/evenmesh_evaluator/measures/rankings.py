"""Metrics of rankings against relevance judgements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_core.ranking_metrics import RankingMetrics, ranking_metrics
from evenmesh_evaluator import fields
from evenmesh_evaluator.measures.bootstraps import defined
from evenmesh_evaluator.reports.codec import estimate
from evenmesh_evaluator.reports.moments import Moments
from evenmesh_kit.compute.steps import Check, unchecked

MAX_QUERIES: Final = 10_000
"""Most queries of one call."""
_IDS_AT_ONCE: Final = 20_000
_METRICS: Final = ("ndcg", "reciprocal_rank", "recall", "precision")


def rankings(request: pb.EvaluateRankingsRequest, check: Check = unchecked) -> pb.EvaluateRankingsResponse:
    """Measure nDCG, reciprocal rank, recall and precision at k as trec_eval does.

    The response has the metrics of each query, undefined ones unset, and their means with 95 % intervals.
    ``check`` is called before each step; an exception of it ends the computation.
    """
    fields.sized("queries", len(request.queries), 1, MAX_QUERIES)
    ranked: dict[str, list[str]] = {}
    judgements: dict[str, dict[str, int]] = {}
    for index, query in enumerate(request.queries):
        check()
        field = f"queries[{index}]"
        name = fields.identifier(f"{field}.query_id", query.query_id)
        if name in ranked:
            raise InvalidField(f"{field}.query_id", f"{name!r} comes twice")
        ranked[name] = _ranking(f"{field}.ranking", query.ranking)
        judgements[name] = dict(query.grades)
        for passage, grade in judgements[name].items():
            checks.between(f"{field}.grades[{passage[:80]!r}]", grade, 0, 1000)
    metrics = _measured(ranked, judgements, checks.between("k", request.k, 1, 1000), check)

    response = pb.EvaluateRankingsResponse()
    for at, name in enumerate(metrics.queries):
        response.queries.add(
            query_id=name,
            ndcg=defined(metrics.ndcg[at]),
            reciprocal_rank=defined(metrics.reciprocal_rank[at]),
            recall=defined(metrics.recall[at]),
            precision=metrics.precision[at],
        )
    for name in metrics.means():
        values = map(defined, getattr(metrics, name).tolist())
        getattr(response, name).CopyFrom(estimate(Moments.of(values).estimate(0.0, 1.0)))
    return response


def _measured(
    ranked: Mapping[str, list[str]],
    judgements: Mapping[str, Mapping[str, int]],
    k: int,
    check: Check,
) -> RankingMetrics:
    """Measure some queries after the other, as many as take a fraction of a second."""
    parts, names, ids = [], list[str](), 0
    for name in ranked:
        names.append(name)
        ids += len(ranked[name]) + len(judgements[name])
        if ids >= _IDS_AT_ONCE:
            check()
            parts.append(_part(ranked, judgements, names, k))
            names, ids = [], 0
    check()
    if names:
        parts.append(_part(ranked, judgements, names, k))
    return RankingMetrics(
        tuple(ranked), *(np.concatenate([getattr(part, name) for part in parts]) for name in _METRICS)
    )


def _part(
    ranked: Mapping[str, list[str]],
    judgements: Mapping[str, Mapping[str, int]],
    names: Iterable[str],
    k: int,
) -> RankingMetrics:
    return ranking_metrics(
        {name: ranked[name] for name in names}, {name: judgements[name] for name in names}, k=k
    )


def _ranking(field: str, ids: Iterable[str]) -> list[str]:
    ranking: dict[str, None] = {}
    for index, one in enumerate(ids):
        if one in ranking:
            raise InvalidField(f"{field}[{index}]", f"{one[:80]!r} comes twice")
        ranking[fields.limited(f"{field}[{index}]", one, checks.MAX_ID_BYTES, min_bytes=1)] = None
    return list(ranking)
