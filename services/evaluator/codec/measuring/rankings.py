"""Rankings against judgements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshkit import checks
from meshkit.errors import InvalidField
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.codec.measuring.intervals import defined
from services.evaluator.domain import Estimate
from services.evaluator.evaluation.rankings import RankingsMeasured, RankingsQuestion

MAX_QUERIES: Final = 10_000
"""Most queries of one call."""


def rankings_question(request: pb.EvaluateRankingsRequest) -> RankingsQuestion:
    """Reads rankings and grades.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    count = len(request.queries)
    if not 1 <= count <= MAX_QUERIES:
        raise InvalidField("queries", f"must be 1 to {MAX_QUERIES}, {count} are given")
    rankings: dict[str, list[str]] = {}
    judgements: dict[str, dict[str, int]] = {}
    for index, query in enumerate(request.queries):
        field = f"queries[{index}]"
        name = fields.identifier(f"{field}.query_id", query.query_id)
        if name in rankings:
            raise InvalidField(f"{field}.query_id", f"{name!r} comes twice")
        rankings[name] = _ranking(f"{field}.ranking", query.ranking)
        grades = dict(query.grades)
        for passage, grade in grades.items():
            checks.between(f"{field}.grades[{passage[:80]!r}]", grade, 0, 1000)
        judgements[name] = grades
    return RankingsQuestion(rankings, judgements, checks.between("k", request.k, 1, 1000))


def rankings_response(measured: RankingsMeasured) -> pb.EvaluateRankingsResponse:
    """Writes metrics per query, undefined ones unset, and their means."""
    metrics = measured.queries
    response = pb.EvaluateRankingsResponse()
    for at, name in enumerate(metrics.queries):
        response.queries.add(
            query_id=name,
            ndcg=defined(metrics.ndcg[at]),
            reciprocal_rank=defined(metrics.reciprocal_rank[at]),
            recall=defined(metrics.recall[at]),
            precision=metrics.precision[at],
        )
    for name, estimate in measured.means.items():
        getattr(response, name).CopyFrom(_estimate(estimate))
    return response


def _ranking(field: str, ids: Iterable[str]) -> list[str]:
    ranking = list(ids)
    if len(set(ranking)) != len(ranking):
        seen: set[str] = set()
        for index, one in enumerate(ranking):
            if one in seen:
                raise InvalidField(f"{field}[{index}]", f"{one[:80]!r} comes twice")
            seen.add(one)
    for index, one in enumerate(ranking):
        fields.limited(f"{field}[{index}]", one, checks.MAX_ID_BYTES, min_bytes=1)
    return ranking


def _estimate(value: Estimate) -> common_pb2.Estimate:
    return common_pb2.Estimate(
        mean=value.mean, low=value.low, high=value.high, count=value.count, undefined=value.undefined
    )
