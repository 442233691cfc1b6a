"""Turn scores into tables: nDCG@10 and recall@5 of every pipeline, and paired intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from benchmarks import page
from benchmarks.rerank_table.judged_sets import CROSS_ENCODER, READER, JudgedSet
from benchmarks.rerank_table.scoring import Scores, standardized
from evenmesh_core.arrays import FloatArray
from evenmesh_core.fusion import platt_scaling, reciprocal_rank_fusion
from evenmesh_core.fusion import standardized as brought
from evenmesh_core.neighbors import text_vectors
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_core.significance import paired_bootstrap
from evenmesh_reranker.domain import Fusion
from evenmesh_reranker.models.fusions import fuse

BASELINE: Final = "hybrid, rank fusion"
STANDARDIZED: Final = "hybrid, standardized"
ASKED: Final = 20
"""Passages that an ask without options reranks."""
WEIGHTS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights of the first stage's standardized scores beside a reranker's log-odds that are tried."""
NEIGHBORS: Final = (0.0, 0.25, 0.5, 1.0)
"""Weights of the support of similar passages that are tried with each."""
GRID: Final = (
    f"tried are {', '.join(f'{one:g}' for one in WEIGHTS)} with {', '.join(f'{one:g}' for one in NEIGHBORS)}"
)
"""For people."""
TRIED: Final = tuple(Fusion(weight, neighbors) for weight in WEIGHTS for neighbors in NEIGHBORS)
_TRAINED_BY: Final = {"rankrag": READER, "cross-encoder": CROSS_ENCODER}
_BINS: Final = 10
_SEED: Final = 7

Ranked = dict[str, list[str]]
"""Passages by question, best first."""


@dataclass(frozen=True)
class Measured:
    """One pipeline on one data set: vectors over the questions. ``trained``: its model knows the domain."""

    ndcg: FloatArray
    recall: FloatArray
    trained: bool = False


def pipelines(judged: JudgedSet, scores: Mapping[str, Scores]) -> dict[str, Ranked]:
    """Return the rankings of the first stages, and of the rerankers alone."""
    rows = [scores[one] for one in judged.queries]
    made: dict[str, Callable[[Scores], list[str]]] = {
        "bm25": lambda row: list(row.bm25),
        "dense": lambda row: list(row.dense),
        BASELINE: rank_fusion,
        STANDARDIZED: lambda row: _ordered(standardized(row.bm25, row.dense)),
    }
    for name in rows[0].reranked:
        made[name] = partial(reranked, name=name, depth=_depth(judged))
    return {name: {row.query: rank(row) for row in rows} for name, rank in made.items()}


def _depth(judged: JudgedSet) -> int | None:
    """Return how many of the best are reranked; None: the whole pool, where there is one."""
    return ASKED if judged.pools is None else None


def rank_fusion(row: Scores) -> list[str]:
    """Return the passages by reciprocal rank fusion."""
    return [one.item for one in reciprocal_rank_fusion([list(row.bm25), list(row.dense)])]


def reranked(row: Scores, name: str, depth: int | None = ASKED) -> list[str]:
    """Return the best passages of the rank fusion in a reranker's order, then the others as they were."""
    first = rank_fusion(row)
    values = dict(zip(row.candidates, row.reranked[name], strict=True))
    best = sorted(first[:depth], key=lambda one: (-values[one], one))
    return [*best, *first[len(best) :]]


@dataclass(frozen=True)
class Pool:
    """The best passages of the standardized hybrid for a question, as an ask reranks them.

    Attributes:
        ids: all that the hybrid found, best first.
        first: standardized scores of those that are reranked, which come first.
        vectors: of their texts.
        known: what each reranker gave them.
    """

    ids: list[str]
    first: FloatArray
    vectors: csr_array
    known: Mapping[str, FloatArray]

    @classmethod
    def of(cls, judged: JudgedSet, texts: Mapping[str, str], row: Scores) -> Pool:
        """Return the pool of a question."""
        first = standardized(row.bm25, row.dense)
        ids = _ordered(first)
        top = ids[: _depth(judged)]
        scores = np.array([first[one] for one in top])
        place = {one: at for at, one in enumerate(row.candidates)}
        known = {name: np.array([values[place[one]] for one in top]) for name, values in row.reranked.items()}
        vectors = text_vectors([texts[one] for one in top])
        return cls(ids, brought(scores, scores[:ASKED]), vectors, known)

    def relevance(self, name: str, fusion: Fusion) -> FloatArray:
        """Return the fused probabilities of those that are reranked, as an ask computes them."""
        return fuse(self.known[name], self.first, fusion, self.vectors)

    def ranked(self, name: str, fusion: Fusion) -> list[str]:
        """Return all passages as an ask ranks them."""
        values = self.relevance(name, fusion).tolist()
        top = self.ids[: len(values)]
        return [*_ordered(dict(zip(top, values, strict=True))), *self.ids[len(top) :]]


def pools(judged: JudgedSet, scores: Mapping[str, Scores]) -> dict[str, Pool]:
    """Return the pool of each question."""
    texts = {one.id: f"{one.title} {one.text}" for one in judged.passages}
    return {one: Pool.of(judged, texts, scores[one]) for one in judged.queries}


def calibrated(judged: JudgedSet, pools: Mapping[str, Pool], name: str, fusion: Fusion) -> Fusion:
    """Return the fusion whose slope and intercept fit a data set best (Platt 1999), by maximum likelihood."""
    pairs = [_pairs(judged, query, pool, name, fusion) for query, pool in pools.items()]
    chances = np.concatenate([chance for chance, _ in pairs])
    relevant = np.concatenate([label for _, label in pairs])
    slope, intercept = platt_scaling(np.log(chances) - np.log1p(-chances), relevant, smoothed=False)
    return replace(fusion, slope=slope, intercept=intercept)


def calibration_error(judged: JudgedSet, pools: Mapping[str, Pool], name: str, fusion: Fusion) -> float:
    """Return the expected calibration error of the passages that an ask reranks, over ten equal intervals.

    Source: Guo et al. 2017, equation 5.
    """
    pairs = [_pairs(judged, query, pool, name, fusion) for query, pool in pools.items()]
    chances = np.concatenate([chance for chance, _ in pairs])
    relevant = np.concatenate([label for _, label in pairs])
    places = np.minimum((chances * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(places, chances - relevant, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(chances))


def _pairs(
    judged: JudgedSet, query: str, pool: Pool, name: str, fusion: Fusion
) -> tuple[FloatArray, FloatArray]:
    chances = pool.relevance(name, fusion)
    grades = judged.judgements[query]
    relevant = np.array([float(grades.get(one, 0) > 0) for one in pool.ids[: len(chances)]])
    return np.clip(chances, 1e-12, 1 - 1e-12), relevant


def _ordered(values: Mapping[str, float]) -> list[str]:
    return sorted(values, key=lambda one: (-values[one], one))


def measured(judged: JudgedSet, rankings: Ranked, *, trained: bool = False) -> Measured:
    """Return the metrics of a pipeline on a data set."""
    kept = {query: found[:ASKED] for query, found in rankings.items()}
    return Measured(
        ranking_metrics(kept, judged.judgements, k=10).ndcg,
        ranking_metrics(kept, judged.judgements, k=5).recall,
        trained,
    )


def values_of_fusions(
    name: str, sets: Mapping[str, JudgedSet], pools: Mapping[str, Mapping[str, Pool]]
) -> dict[str, list[float]]:
    """Return nDCG@10 of a reranker with each of :data:`TRIED`, on the data sets new to its model."""
    return {
        one: [float(np.nanmean(fused(judged, pools[one], name, fusion).ndcg)) for fusion in TRIED]
        for one, judged in sets.items()
        if _TRAINED_BY.get(name) not in judged.trained
    }


def fused(judged: JudgedSet, pools: Mapping[str, Pool], name: str, fusion: Fusion) -> Measured:
    """Return the metrics of a reranker beside the standardized hybrid."""
    rankings = {query: pool.ranked(name, fusion) for query, pool in pools.items()}
    return measured(judged, rankings, trained=_TRAINED_BY.get(name) in judged.trained)


def learned(values: Mapping[str, Sequence[float]], *, without: str = "") -> Fusion:
    """Return the fusion with the best mean over the data sets, the one of smallest weights of several.

    Args:
        values: of :func:`values_of_fusions`.
        without: name of a data set that is left out; empty: none.
    """
    means = np.mean([of for one, of in values.items() if one != without], axis=0)
    return TRIED[int(np.argmax(means))]


def everything(
    sets: Mapping[str, JudgedSet],
    scores: Mapping[str, Mapping[str, Scores]],
    pools: Mapping[str, Mapping[str, Pool]],
) -> tuple[dict[str, dict[str, Measured]], dict[str, dict[str, Fusion]]]:
    """Return what every pipeline has on every data set, and the fusions that were learned without each."""
    found: dict[str, dict[str, Measured]] = {}
    fusions: dict[str, dict[str, Fusion]] = {name: {} for name in _TRAINED_BY}
    values = {name: values_of_fusions(name, sets, pools) for name in _TRAINED_BY}
    for name, judged in sets.items():
        for pipeline, rankings in pipelines(judged, scores[name]).items():
            knows = _TRAINED_BY.get(pipeline) in judged.trained
            found.setdefault(pipeline, {})[name] = measured(judged, rankings, trained=knows)
        for reranker in _TRAINED_BY:
            fusion = fusions[reranker][name] = learned(values[reranker], without=name)
            for label, one in (("", fusion), (", no neighbors", replace(fusion, neighbors=0.0))):
                pipeline = f"{STANDARDIZED} + {reranker}{label}"
                found.setdefault(pipeline, {})[name] = fused(judged, pools[name], reranker, one)
    return found, fusions


def markdown(sets: Mapping[str, JudgedSet], found: Mapping[str, Mapping[str, Measured]]) -> str:
    """Return nDCG@10 and recall@5 of each pipeline, then its differences from both hybrids."""
    parts = []
    for metric, title in (("ndcg", "nDCG@10"), ("recall", "recall@5")):
        parts += [f"## {title}", "", page.table([_row(one, found[one], sets, metric) for one in found]), ""]
    for baseline in (BASELINE, STANDARDIZED):
        rows = [_differences(one, found[one], found[baseline], sets) for one in found if one != baseline]
        parts += [f"## nDCG@10 beside the {baseline}", "", page.table(rows), ""]
    return "\n".join(parts)


def _row(
    pipeline: str, of: Mapping[str, Measured], sets: Mapping[str, JudgedSet], metric: str
) -> dict[str, str]:
    unseen = [np.nanmean(getattr(of[name], metric)) for name in sets if not sets[name].trained]
    row = {"pipeline": pipeline, "mean of unseen": f"{np.mean(unseen):.3f}"}
    for name in sets:
        mark = "*" if of[name].trained else ""
        row[name] = f"{np.nanmean(getattr(of[name], metric)):.3f}{mark}"
    return row


def _differences(
    pipeline: str,
    of: Mapping[str, Measured],
    baseline: Mapping[str, Measured],
    sets: Mapping[str, JudgedSet],
) -> dict[str, str]:
    unseen = [name for name in sets if not sets[name].trained]
    mean = _macro([of[name].ndcg - baseline[name].ndcg for name in unseen])
    row = {"pipeline": pipeline, "mean of unseen": mean}
    for name in sets:
        difference = paired_bootstrap(of[name].ndcg, baseline[name].ndcg, rng=_SEED).difference
        row[name] = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return row


def _macro(differences: Sequence[FloatArray], resamples: int = 2000) -> str:
    """Return the mean over data sets of the mean difference; questions are drawn anew within each set."""
    rng = np.random.default_rng(_SEED)
    defined = [one[~np.isnan(one)] for one in differences]
    value = np.mean([one.mean() for one in defined])
    drawn = np.mean(
        [one[rng.integers(0, len(one), (resamples, len(one)))].mean(1) for one in defined], axis=0
    )
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
