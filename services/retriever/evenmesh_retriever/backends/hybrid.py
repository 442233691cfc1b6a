"""Fuse several retrievers, by rank or by score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from evenmesh_core.fusion import FusedItem, reciprocal_rank_fusion, standardized, weighted_score_fusion
from evenmesh_retriever.domain import Filter, FloatArray, IntArray, Passage, RetrieverInfo, Scored, Unranked
from evenmesh_retriever.ports import Retriever, Snapshot
from evenmesh_retriever.steps import Steps

FusionMethod = Literal["rrf", "score", "standard"]

_POOL: Final = 100
_NOTHING: Final = Scored(np.empty(0, dtype=np.int64), np.empty(0))


@dataclass(frozen=True, slots=True)
class Component:
    """One retriever of several."""

    retriever: Retriever
    weight: float
    """From 0."""
    is_sparse: bool
    """Whether a score of 0 or less means that a passage shares nothing with the query, and has no rank."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How rankings become one."""

    method: FusionMethod = "rrf"
    """``rrf``: reciprocal rank fusion; ``score``: weighted sum of scores brought to [0, 1] by their least and
    largest in the pool; ``standard``: of scores brought to mean 0 and standard deviation 1 in the pool, where
    what shares nothing with the query has a sparse score of 0, and what is not found the lowest found."""
    k: float = 60
    """How little the first ranks stand out in ``rrf``, from 0."""

    @property
    def description(self) -> str:
        """For people."""
        return {
            "rrf": f"reciprocal rank fusion (k={self.k:g})",
            "score": "min-max score fusion",
            "standard": "standardized score fusion",
        }[self.method]

    def fused(
        self,
        sides: Sequence[Scored],
        weights: Sequence[float],
        n: int,
        missing: Sequence[float] | None = None,
    ) -> Scored:
        """Return the best ``n`` of several rankings of the same rows; equal scores by ascending row.

        ``missing``: with ``standard`` the score of what a retriever has not found, for each.
        """
        ranked: list[FusedItem[int]]
        if self.method == "rrf":
            ranked = reciprocal_rank_fusion([side.rows.tolist() for side in sides], k=self.k, weights=weights)
        elif self.method == "standard":
            ranked = weighted_score_fusion(
                [dict(zip(side.rows.tolist(), side.scores.tolist(), strict=True)) for side in sides],
                weights,
                normalization="z-score",
                missing=missing,
            )
        else:
            ranked = weighted_score_fusion(
                [dict(zip(side.rows.tolist(), side.scores.tolist(), strict=True)) for side in sides], weights
            )
        rows = np.array([entry.item for entry in ranked[:n]], dtype=np.int64)
        return Scored(rows, np.array([entry.score for entry in ranked[:n]]))

    def shares(self, scores: FloatArray, places: IntArray) -> FloatArray:
        """Return what passages get from one retriever that has scored them all, before its weight, ``[n]``.

        Not for ``standard``, which depends on what the others have found.

        Args:
            scores: its scores, ``[n]``.
            places: numbers by which equal scores are ordered, ``[n]``.
        """
        if self.method == "rrf":
            ranks = np.empty(len(scores))
            ranks[np.lexsort((places, -scores))] = np.arange(1, len(scores) + 1)
            return 1 / (self.k + ranks)
        low, high = scores.min(initial=np.inf), scores.max(initial=-np.inf)
        brought: FloatArray = (scores - low) / (high - low) if high > low else np.ones(len(scores))
        return brought


class HybridRetriever:
    """Fusion of retrievers (Cormack, Clarke and Buettcher 2009; Fox and Shaw 1994).

    Each gives its best 100, or as many as are asked for if that is more. Passages that share no term with the
    query have no rank in a sparse one, and passages without a vector, while vectors are being made, none in a
    dense one.

    Args:
        info: what it is.
        components: what is fused, 1 or more.
        fusion: how.
    """

    def __init__(self, info: RetrieverInfo, components: Sequence[Component], fusion: Fusion) -> None:
        self.info = info
        self._components = components
        self._weights = [component.weight for component in components]
        self._fusion = fusion

    def prepare(self, snapshot: Snapshot) -> None:
        """Leave it to the components, which are retrievers of the server too."""

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` passages that may be found.

        Raises:
            FailedPrecondition: the collection lacks what a component needs.
            InvalidField: no passage has an attribute of the filter.
        """
        pool = max(n, _POOL)
        sides = [
            _matching(component, component.retriever.search(snapshot, query, pool, where))
            if component.is_sparse or snapshot.info.embedded
            else _NOTHING
            for component in self._components
        ]
        # Fused under numbers that ascend with ids, by which equal scores are ordered.
        by_id = snapshot.by_id(np.unique(np.concatenate([side.rows for side in sides])))
        order = np.argsort(by_id)
        numbered = [_renumbered(side, by_id, order) for side in sides]
        fused = self._fusion.fused(numbered, self._weights, n, self._missing(sides, pool))
        return Scored(by_id[fused.rows], fused.scores)

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """Return all allowed passages with the scores that :meth:`search` would give them.

        A passage that no component has a rank for scores as little as one can. Ranking the whole collection
        sorts it once for each component.

        Raises:
            FailedPrecondition: the collection lacks what a component needs, or is kept where not every
                passage can be scored.
            InvalidField: no passage has an attribute of the filter.
        """
        sides = [
            component.retriever.scores(snapshot, query, where)
            if component.is_sparse or snapshot.info.embedded
            else Unranked(_NOTHING.rows, _NOTHING.scores)
            for component in self._components
        ]
        rows = np.unique(np.concatenate([side.rows for side in sides]))
        total = np.zeros(len(rows))
        matching = []
        for component, side in zip(self._components, sides, strict=True):
            ranked = side.scores > 0 if component.is_sparse else np.ones(len(side.rows), dtype=np.bool_)
            there, scores = side.rows[ranked], side.scores[ranked]
            matching.append(Unranked(there, scores))
            if self._fusion.method != "standard":
                shares = self._fusion.shares(scores, snapshot.places(there))
                total[np.searchsorted(rows, there)] += component.weight * shares
        if self._fusion.method == "standard":
            total = self._standardized(rows, matching, snapshot)
        return Unranked(rows, total)

    def _standardized(self, rows: IntArray, sides: Sequence[Unranked], snapshot: Snapshot) -> FloatArray:
        """Return the fused scores of these rows, by the means and deviations of what a search would find."""
        pools = []
        for side in sides:
            order = np.lexsort((snapshot.places(side.rows), -side.scores))[:_POOL]
            pools.append(Scored(side.rows[order], side.scores[order]))
        found = np.searchsorted(rows, np.unique(np.concatenate([pool.rows for pool in pools])))
        total = np.zeros(len(rows))
        missing = self._missing(pools, _POOL)
        for weight, side, pool, fill in zip(self._weights, sides, pools, missing, strict=True):
            if not len(pool.rows):
                continue
            values = np.full(len(rows), fill)
            # What the pool lacks counts as in a search, though this retriever has scored it.
            values[np.searchsorted(rows, side.rows)] = np.maximum(side.scores, fill)
            total += weight * standardized(values, values[found])
        return total

    def _missing(self, sides: Sequence[Scored], pool: int) -> list[float]:
        """Return the score of what a component has not found: 0 for nothing shared, or its pool's lowest."""
        return [
            0.0
            if not len(side.rows) or (component.is_sparse and len(side.rows) < pool)
            else float(side.scores[-1])
            for component, side in zip(self._components, sides, strict=True)
        ]

    def note(self, snapshot: Snapshot) -> str:
        """Return what the components have to say."""
        notes = (component.retriever.note(snapshot) for component in self._components)
        return "; ".join(dict.fromkeys(filter(None, notes)))

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages; those that no component has a rank for come last."""
        sides = []
        for one in self._components:
            found = yield from one.retriever.rank(passages, query)
            # Standardized scores compare with passages that share nothing, too.
            sides.append(found if self._fusion.method == "standard" else _matching(one, found))
        fused = self._fusion.fused(sides, self._weights, len(passages))
        missing = np.setdiff1d(np.arange(len(passages)), fused.rows)
        return Scored(
            np.concatenate([fused.rows, missing]), np.concatenate([fused.scores, np.zeros(len(missing))])
        )

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work of all components."""
        return sum(one.retriever.work(sizes) for one in self._components)


def _matching(component: Component, scored: Scored) -> Scored:
    if not component.is_sparse:
        return scored
    matches = scored.scores > 0
    return Scored(scored.rows[matches], scored.scores[matches])


def _renumbered(scored: Scored, rows: IntArray, order: IntArray) -> Scored:
    """Return places in ``rows``, which ``order`` sorts, instead of rows."""
    return Scored(order[np.searchsorted(rows, scored.rows, sorter=order)], scored.scores)
