"""How an ask runs an expression: its sources at once, then reranking, concatenation and truncation."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np

from meshkit.compute import ComputePool
from meshkit.deadline import Deadline
from meshkit.errors import DeadlineExceeded, MeshError
from orchestrator.budgets import Clock, Setback, attempt
from orchestrator.contexts import sampled
from orchestrator.domain import Ask, Contexts, Degraded, Passage, Pool, Ranked, Stage
from orchestrator.expressions.notation import (
    PARAMETRIC_KNOWLEDGE,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)
from orchestrator.expressions.sources import KNOWLEDGE_DEPTH, Place, Recipe
from orchestrator.policy import Step
from orchestrator.ports import Generator, Reranker, Retriever
from ragcore.arrays import FloatArray, IntArray

T = TypeVar("T")

_MAX_VERSION_BYTES: Final = 256
# Fields of a request to a source that the settings fill in, not the caller.
_OF_THE_SETTINGS: Final = frozenset({"collection", "web", "retriever", "depth", "k"})


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the sources of an expression found.

    Attributes:
        pool: every passage once, in the order of the sources.
        rows: the list of each source that answered, by name, as indices into the pool.
        scores: of the passages in it, in the source's unit.
        degradations: the sources that were left out.
    """

    pool: Pool
    rows: Mapping[str, IntArray]
    scores: Mapping[str, FloatArray]
    degradations: Sequence[Degraded]


@dataclass(frozen=True, slots=True)
class Scored:
    """A list that rankings can be drawn from.

    Attributes:
        rows: indices into the pool, best first, [m].
        scores: of them, [m].
        k: positions of a ranking, at most m.
        reranker: what scored them; ``none`` for the source's own scores.
        model_version: version of the reranker's model.
    """

    rows: IntArray
    scores: FloatArray
    k: int
    reranker: str
    model_version: str


@dataclass(frozen=True, slots=True)
class _Items:
    """A list: indices into the pool, and their scores where they are of one kind."""

    rows: IntArray
    scores: FloatArray | None


class ExpressionStages:
    """The stages *retrieve* and *rerank* of asks with an expression.

    Args:
        retriever: asked for the passages of every source but ``PK``.
        reranker: scores what is to be reranked.
        generator: writes the document of ``PK``.
        pool: threads that draw rankings.
    """

    def __init__(
        self, *, retriever: Retriever, reranker: Reranker, generator: Generator, pool: ComputePool
    ) -> None:
        self._retriever = retriever
        self._reranker = reranker
        self._generator = generator
        self._pool = pool

    async def gather(self, ask: Ask, recipe: Recipe, clock: Clock) -> Gathered:
        """Asks all sources at once; those that fail are left out.

        Raises:
            MeshError: every source failed; of the first that did, which its message names.
        """
        names = [*recipe.places, *([PARAMETRIC_KNOWLEDGE] if recipe.uses_knowledge else [])]
        outcomes = await _together(
            [
                self._knowledge(ask, clock) if place is None else self._found(ask, place, clock)
                for place in map(recipe.places.get, names)
            ]
        )
        found = {
            name: outcome
            for name, outcome in zip(names, outcomes, strict=True)
            if not isinstance(outcome, Setback)
        }
        lost = {
            name: outcome
            for name, outcome in zip(names, outcomes, strict=True)
            if isinstance(outcome, Setback)
        }
        if not found:
            name, setback = next(iter(lost.items()))
            raise _named(name, setback.error)
        return _gathered(recipe, found, [setback.degraded for setback in lost.values()])

    async def arrange(
        self, ask: Ask, recipe: Recipe, gathered: Gathered, clock: Clock
    ) -> tuple[Ranked, list[Degraded]]:
        """Makes what the generator is given of what the sources found.

        Raises:
            MeshError: the ask named a reranker, which refused.
        """
        run = _Arrangement(self._reranker, ask, gathered, clock)
        began = time.perf_counter()
        contexts = await self._contexts(run, ask, recipe)
        if recipe.reranks:
            clock.took(Stage.RERANK, began)
        return Ranked(contexts, run.reranker, run.model_version), run.degradations

    async def scored(
        self, ask: Ask, recipe: Recipe, gathered: Gathered, clock: Clock
    ) -> tuple[Scored, list[Degraded]]:
        """The one list of an expression that rankings can be drawn from, see :attr:`Recipe.sampled_part`.

        Raises:
            MeshError: the ask named a reranker, which refused.
            ValueError: the expression has no such list.
        """
        part = recipe.sampled_part
        if part is None:
            raise ValueError(f"{recipe.text} has no one list of scores")
        run = _Arrangement(self._reranker, ask, gathered, clock)
        began = time.perf_counter()
        found = await _scored(run, part)
        if recipe.reranks:
            clock.took(Stage.RERANK, began)
        return found, run.degradations

    async def _contexts(self, run: _Arrangement, ask: Ask, recipe: Recipe) -> Contexts:
        part = recipe.sampled_part
        if ask.sampling is None or part is None:
            lists = await _together([run.cut(one) for one in recipe.expression.parts])
            return Contexts(_concatenated([one.rows for one in lists])[None, :], None)
        found = await _scored(run, part)
        if not len(found.rows):
            return Contexts(np.empty((1, 0), dtype=np.int64), None)
        drawn = await self._pool.run(sampled, found.scores, ask.question, ask.sampling, found.k)
        return Contexts(found.rows[drawn.rows], drawn.log_probabilities)

    async def _found(self, ask: Ask, place: Place, clock: Clock) -> Pool | Setback:
        asked = replace(
            ask,
            collection=place.collection,
            web=place.web,
            retriever=place.retriever,
            depth=place.depth,
            id_prefix=place.prefix,
        )
        return await attempt(
            clock,
            Step.SOURCE,
            lambda budget: self._retriever.retrieve(asked, k=place.depth, sampling=None, timeout_s=budget),
            who=f"source {place.source}",
        )

    async def _knowledge(self, ask: Ask, clock: Clock) -> Pool | Setback:
        return await attempt(
            clock,
            Step.SOURCE,
            lambda budget: self._generator.knowledge(ask, most=KNOWLEDGE_DEPTH, timeout_s=budget),
            who=f"source {PARAMETRIC_KNOWLEDGE}",
        )


@dataclass(slots=True)
class _Arrangement:
    """One run of an expression over what was found; notes what reranked it, and what went wrong."""

    _reranker: Reranker
    _ask: Ask
    _gathered: Gathered
    _clock: Clock
    reranker: str = "none"
    model_version: str = ""
    degradations: list[Degraded] = field(default_factory=list)
    _until: Deadline | None = None

    async def cut(self, selection: Selection) -> _Items:
        """The list of a selection."""
        items = await self.items(selection)
        if selection.keep is None:
            return items
        return _Items(
            items.rows[: selection.keep], None if items.scores is None else items.scores[: selection.keep]
        )

    async def items(self, selection: Selection) -> _Items:
        """The list of a selection before it is truncated."""
        match selection.origin:
            case Source(name):
                items = self._of(name)
            case ParametricKnowledge():
                items = self._of(PARAMETRIC_KNOWLEDGE)
            case Group(parts):
                lists = await _together([self.cut(part) for part in parts])
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
        ask = self._ask
        passages: Sequence[Passage] = [self._gathered.pool.passages[row] for row in items.rows]
        if self._until is None:
            # Lists within lists are reranked in turn, and all of it is one stage.
            try:
                self._until = Deadline.after(self._clock.budget(Stage.RERANK))
            except DeadlineExceeded:
                self._until = Deadline.after(0.0)
        outcome = await attempt(
            self._clock,
            Step.RERANK if ask.names_reranker else Step.DEFAULT_RERANK,
            lambda budget: self._reranker.rerank(
                ask.wording, passages, agent=ask.agent, reranker=ask.reranker, timeout_s=budget
            ),
            who=f"the reranker, for {selection},",
            until=self._until,
        )
        if isinstance(outcome, Setback):
            self.degradations.append(outcome.degraded)
            return items
        self.reranker, self.model_version = outcome.reranker, outcome.model_version
        scores = outcome.scores
        order = sorted(range(len(passages)), key=lambda place: (-scores[place], passages[place].id))
        return _Items(items.rows[order], scores[order])


async def _scored(run: _Arrangement, part: Selection) -> Scored:
    items = await run.items(part)
    size = len(items.rows)
    # Where a reranker of several sources failed there is but their order to sample from.
    scores = items.scores if items.scores is not None else np.arange(size, 0, -1, dtype=np.float64)
    return Scored(items.rows, scores, min(part.keep or size, size), run.reranker, run.model_version)


def _gathered(recipe: Recipe, found: Mapping[str, Pool], lost: Sequence[Degraded]) -> Gathered:
    """One pool of several, each passage once: two sources of one place find the same ones."""
    index: dict[str, int] = {}
    passages: list[Passage] = []
    scores: list[float] = []
    rows: dict[str, IntArray] = {}
    for name, pool in found.items():
        for passage, score in zip(pool.passages, pool.scores.tolist(), strict=True):
            if passage.id not in index:
                index[passage.id] = len(passages)
                passages.append(passage)
                scores.append(score)
        rows[name] = np.array([index[passage.id] for passage in pool.passages], dtype=np.int64)
    version = ",".join(f"{name}={pool.index_version}" for name, pool in found.items() if pool.index_version)
    if len(version.encode()) > _MAX_VERSION_BYTES:
        version = f"sha256:{hashlib.sha256(version.encode()).hexdigest()}"
    return Gathered(
        pool=Pool(
            passages=passages,
            scores=np.array(scores, dtype=np.float64),
            rankings=np.arange(len(passages), dtype=np.int64)[None, :],
            log_probabilities=None,
            retriever=recipe.text,
            index_version=version,
        ),
        rows=rows,
        scores={name: pool.scores for name, pool in found.items()},
        degradations=lost,
    )


def _concatenated(lists: Sequence[IntArray]) -> IntArray:
    """One list after the other, each passage where it comes first."""
    once = dict.fromkeys(row for rows in lists for row in rows.tolist())
    return np.fromiter(once, dtype=np.int64, count=len(once))


def _named(source: str, error: MeshError) -> MeshError:
    """The error of a source, with its name, and the expression for what the settings say of it."""
    what = "expression" if error.field in _OF_THE_SETTINGS else error.field
    return MeshError(
        error.code,
        error.reason,
        f"source {source}: {error.message}",
        field=what,
        retry_after_s=error.retry_after_s,
    )


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of calls made at once; when one raises, or the caller is cancelled, all are."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
