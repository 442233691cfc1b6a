"""Field-standard metrics of rankings against relevance judgements, through ``ir-measures``.

``ir-measures`` computes them with trec_eval's own code (``pytrec_eval``) and imports in a tenth of a second;
``ranx`` takes two seconds and brings numba, pandas and matplotlib along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenmesh_core.arrays import FloatArray, count
from evenmesh_core.errors import InvalidInput
from evenmesh_core.means import DefinedMean, defined_mean


@dataclass(frozen=True)
class RankingMetrics:
    """Metrics of each query's ranking, cut at k; means are by :func:`evenmesh_core.means.defined_mean`.

    A query without relevant passages has no ideal ranking to compare with: all but its precision are ``nan``
    (trec_eval would say 0, which no ranking could have bettered).
    """

    queries: tuple[str, ...]
    """The Q queries, in the order of the judgements."""
    ndcg: FloatArray
    """Vector [Q] in [0, 1]: nDCG@k with gain = grade and discount log2(rank + 1)."""
    reciprocal_rank: FloatArray
    """Vector [Q] in [0, 1]: 1 / rank of the first relevant passage, 0 where none is among the first k."""
    recall: FloatArray
    """Vector [Q] in [0, 1]: share of the relevant passages among the first k."""
    precision: FloatArray
    """Vector [Q] in [0, 1]: relevant passages among the first k, over k, however short the ranking is."""

    def means(self) -> Mapping[str, DefinedMean]:
        """Average each metric over the queries where it is defined (``reciprocal_rank`` gives the MRR)."""
        return {
            name: defined_mean(getattr(self, name))
            for name in ("ndcg", "reciprocal_rank", "recall", "precision")
        }


def ranking_metrics(
    rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]], *, k: int
) -> RankingMetrics:
    """Score rankings by nDCG@k, reciprocal rank@k, recall@k and precision@k.

    Args:
        rankings: for each query the ids of the passages, best first, each at most once; a judged query
            without a ranking counts as one with an empty ranking.
        judgements: for each query the grade of each judged passage: 0 not relevant, from 1 relevant. Passages
            that are not judged count as not relevant.
        k: depth of the cut, from 1.

    Source: Järvelin & Kekäläinen 2002 for nDCG; trec_eval's definitions throughout.

    Raises:
        InvalidInput: no judgements, a ranked query that is not judged, a passage twice in a ranking, a grade
            that is no whole number from 0, or k below 1.
    """
    depth = count("k", k)
    if len(judgements) == 0:
        raise InvalidInput("judgements", judgements, "at least one query")
    for query, ranking in rankings.items():
        if query not in judgements:
            raise InvalidInput(f"rankings[{query!r}]", query, "queries that have judgements")
        if len(set(ranking)) != len(ranking):
            raise InvalidInput(f"rankings[{query!r}]", ranking, "each passage once")
    for query, grades in judgements.items():
        for passage, grade in grades.items():
            count(f"judgements[{query!r}][{passage!r}]", grade, low=0)

    import ir_measures

    wanted = {
        "ndcg": ir_measures.nDCG @ depth,
        "reciprocal_rank": ir_measures.RR,
        "recall": ir_measures.R @ depth,
        "precision": ir_measures.P @ depth,
    }
    names = {measure: name for name, measure in wanted.items()}
    place = {query: index for index, query in enumerate(judgements)}
    values = {name: np.zeros(len(place)) for name in wanted}
    # Falling scores make the ranking's order the only one: trec_eval breaks ties in its own way.
    run = {
        query: {passage: float(-rank) for rank, passage in enumerate(ranking[:depth])}
        for query, ranking in rankings.items()
        if len(ranking) > 0
    }
    qrels = {query: dict(grades) for query, grades in judgements.items()}
    if run:
        for metric in ir_measures.pytrec_eval.iter_calc(list(names), qrels, run):
            values[names[metric.measure]][place[metric.query_id]] = metric.value
    for query, grades in judgements.items():
        if not any(grades.values()):
            for name in ("ndcg", "reciprocal_rank", "recall"):
                values[name][place[query]] = np.nan
    return RankingMetrics(queries=tuple(place), **values)
