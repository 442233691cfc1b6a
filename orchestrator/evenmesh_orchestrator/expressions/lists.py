"""The lists of an expression: what its sources found, reranked, concatenated and truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure
from evenmesh_orchestrator.asks.contexts import best_first
from evenmesh_orchestrator.domain import Ask, Contexts, Degraded, FirstStage, Relevance, Stage
from evenmesh_orchestrator.expressions.gathering import Gathered, concurrently
from evenmesh_orchestrator.expressions.notation import (
    PARAMETRIC_KNOWLEDGE,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)


class Rerank(Protocol):
    """Scores passages; see :meth:`evenmesh_orchestrator.asks.ranking.RankingStage.rerank`."""

    async def __call__(
        self,
        ask: Ask,
        passages: Sequence[Passage],
        clock: Clock,
        *,
        first: FirstStage | None,
        who: str,
        until: Deadline | None,
    ) -> Relevance | HandledFailure: ...


@dataclass(frozen=True, slots=True)
class _Items:
    """A list: indices into the pool, and their scores where all are of one kind."""

    rows: IntArray
    scores: FloatArray | None

    def first(self, count: int | None) -> _Items:
        """Return the first ``count`` items; all for None."""
        return _Items(self.rows[:count], None if self.scores is None else self.scores[:count])


class ExpressionLists:
    """Evaluates an expression over what its sources found.

    Args:
        ask: the ask.
        gathered: what the sources found.
        clock: of the ask.
        rerank: scores passages.

    Attributes:
        reranker: the reranker that answered; ``none`` before.
        model_version: version of its model.
        fusion: weight of the sources' scores beside the reranker's, in the last list that it scored.
        degradations: rerankings that failed; their lists keep their order.
    """

    def __init__(self, ask: Ask, gathered: Gathered, clock: Clock, rerank: Rerank) -> None:
        self._ask = ask
        self._gathered = gathered
        self._clock = clock
        self._rerank = rerank
        self._until: Deadline | None = None
        self.reranker = "none"
        self.model_version = ""
        self.fusion = 0.0
        self.degradations: list[Degraded] = []

    async def contexts(self) -> Contexts:
        """Return the context of the whole expression."""
        parts = self._gathered.expression.parsed.parts
        lists = await concurrently([self._truncated(part) for part in parts])
        return Contexts(_concatenated([one.rows for one in lists])[None, :], None)

    async def sampled_part(self) -> tuple[IntArray, FloatArray, int]:
        """Return the one list to draw rankings from: indices [m], scores [m], positions of a ranking.

        Raises:
            ValueError: the expression has no such list.
        """
        part = self._gathered.expression.sampled_part
        if part is None:
            raise ValueError(f"{self._gathered.expression.text} has no one list of scores")
        items = await self._items(part)
        size = len(items.rows)
        # If a reranker of several sources failed, only their order is left to sample from.
        scores = items.scores if items.scores is not None else np.arange(size, 0, -1, dtype=np.float64)
        return items.rows, scores, min(part.keep or size, size)

    async def _truncated(self, selection: Selection) -> _Items:
        return (await self._items(selection)).first(selection.keep)

    async def _items(self, selection: Selection) -> _Items:
        """Return the list of a selection before truncation."""
        match selection.base:
            case Source(name):
                items = self._of(name)
            case ParametricKnowledge():
                items = self._of(PARAMETRIC_KNOWLEDGE)
            case Group(parts):
                lists = await concurrently([self._truncated(part) for part in parts])
                items = _Items(
                    _concatenated([one.rows for one in lists]), lists[0].scores if len(lists) == 1 else None
                )
        if selection.reranked and len(items.rows):
            return await self._reranked(selection, items)
        return items

    def _of(self, name: str) -> _Items:
        none = np.empty(0, dtype=np.int64)
        return _Items(self._gathered.rows.get(name, none), self._gathered.scores.get(name))

    async def _reranked(self, selection: Selection, items: _Items) -> _Items:
        pool = self._gathered.pool
        if self._until is None:
            # Nested lists are reranked in turn, and all of it is one stage.
            try:
                self._until = Deadline.after(self._clock.budget(Stage.RERANK))
            except DeadlineExceeded:
                self._until = Deadline.after(0.0)
        outcome = await self._rerank(
            self._ask,
            pool.rows(items.rows),
            self._clock,
            # Scores of several sources are of several kinds: they cannot be fused with.
            first=None
            if items.scores is None
            else FirstStage.of(items.scores, items.scores, self._ask.fusion),
            who=f"the reranker, for {selection},",
            until=self._until,
        )
        if isinstance(outcome, HandledFailure):
            self.degradations.append(outcome.degraded)
            return items
        self.reranker, self.model_version = outcome.reranker, outcome.model_version
        self.fusion = outcome.fusion
        order = best_first(items.rows, outcome.scores, pool.passages)
        return _Items(items.rows[order], outcome.scores[order])


def _concatenated(lists: Sequence[IntArray]) -> IntArray:
    """Return one list after the other, each passage where it comes first."""
    once = dict.fromkeys(row for rows in lists for row in rows.tolist())
    return np.fromiter(once, dtype=np.int64, count=len(once))
