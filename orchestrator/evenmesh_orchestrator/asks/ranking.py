"""The ranking stage of asks, ensemble members and audits: rerank, order, and cut or draw contexts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from evenmesh.common.v1.common_pb2 import Passage, Policy
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.exposure_balance import ExposureBalance
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.asks import contexts
from evenmesh_orchestrator.asks.balance import BalanceReader, balanced
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, attempt
from evenmesh_orchestrator.asks.exposure import offload
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.asks.merit import relevance_of
from evenmesh_orchestrator.asks.retrieval import Found
from evenmesh_orchestrator.domain import (
    EMPTY_CONTEXTS,
    Ask,
    Contexts,
    Degraded,
    FirstStage,
    Pool,
    Ranked,
    Relevance,
    Sampling,
    Stage,
)
from evenmesh_orchestrator.expressions.lists import ExpressionLists
from evenmesh_orchestrator.ports import Reranker


@dataclass(frozen=True, slots=True)
class Scored:
    """A list that rankings can be drawn from.

    Attributes:
        rows: indices into the pool, [m].
        scores: of them, [m].
        best: the first positions of the list without a draw, [k].
        reranker: the reranker that scored them; ``none`` for the source's own scores.
        model_version: version of the reranker's model.
        fusion: weight of the retriever's scores in them.
        degradations: failures on the way.
    """

    rows: IntArray
    scores: FloatArray
    best: IntArray
    reranker: str = "none"
    model_version: str = ""
    fusion: float = 0.0
    degradations: Sequence[Degraded] = ()


def first_stage(ask: Ask, pool: Pool, rows: IntArray) -> FirstStage | None:
    """Return the retriever's scores of some passages of a pool, for the reranker to fuse with."""
    return FirstStage.of(pool.scores[rows], pool.scores, ask.fusion)


class RankingStage:
    """Ranks the pools of asks.

    Args:
        reranker: scores passages again.
        pool: threads for rankings that are too large for the event loop.
        around_draw: a context manager around each draw of rankings, for telemetry.
        balances: reads what providers are owed; None where asks may not want it.
    """

    def __init__(
        self,
        reranker: Reranker,
        pool: TenantPool,
        around_draw: Callable[[Sampling], AbstractContextManager[object]] = nullcontext,
        balances: BalanceReader | None = None,
    ) -> None:
        self._balances = balances
        self._reranker = reranker
        self._pool = pool
        self._around_draw = around_draw

    async def rank(self, found: Found, clock: Clock) -> tuple[Ranked, Sequence[Degraded]]:
        """Return the contexts of an ask, and what failed on the way.

        Raises:
            MeshError: the ask named a reranker, which refused.
        """
        ask, pool, expression = found.ask, found.pool, found.ask.expression
        if not pool.passages:
            return Ranked(EMPTY_CONTEXTS), ()
        retrieved = Contexts(pool.rankings, pool.log_probabilities)
        if expression is None and ask.reranker == "none":
            relevance = relevance_of(pool, np.arange(len(pool.passages)), pool.scores, reranked=False)
            cut = contexts.cut(retrieved, ask.k)
            return Ranked(cut, policy=pool.policy, relevance=relevance), ()
        began = time.perf_counter()
        degradations: Sequence[Degraded]
        if ask.sampling is not None and (
            expression.sampled_part is not None
            if expression is not None
            else ask.sampling_stage == pb.SAMPLING_STAGE_RERANKER
        ):
            scored = await self.scored(found, clock)
            known, failures = await self._balance(ask, clock)
            drawn, policy = await self._draw(found, ask.sampling, scored, known)
            ranked = Ranked(
                drawn,
                scored.reranker,
                scored.model_version,
                fusion=scored.fusion,
                policy=policy,
                relevance=relevance_of(pool, scored.rows, scored.scores, reranked=scored.reranker != "none"),
            )
            degradations = (*scored.degradations, *failures)
        elif found.gathered is not None:
            lists = ExpressionLists(ask, found.gathered, clock, self.rerank)
            ranked = Ranked(await lists.contexts(), lists.reranker, lists.model_version, fusion=lists.fusion)
            degradations = lists.degradations
        else:
            first = contexts.cut(retrieved, ask.rerank_depth)
            (reordered,), outcome = await self.reorder(ask, pool, [first], clock)
            rows = np.unique(first.rows)
            if isinstance(outcome, HandledFailure):
                relevance = relevance_of(pool, rows, pool.scores[rows], reranked=False)
                ranked, degradations = Ranked(reordered, relevance=relevance), (outcome.degraded,)
            else:
                ranked = Ranked(
                    reordered,
                    outcome.reranker,
                    outcome.model_version,
                    fusion=outcome.fusion,
                    relevance=relevance_of(pool, rows, outcome.scores, reranked=True),
                )
                degradations = ()
        if expression is None or expression.reranks:
            clock.record(Stage.RERANK, began)
        return ranked, degradations

    async def scored(self, found: Found, clock: Clock) -> Scored:
        """Return the one list of an ask that rankings can be drawn from.

        It is the pool by the retriever's scores, its first passages by the reranker's, or the list of the
        expression. Where the reranker failed it has the retriever's scores, so that an ask still gets the
        rankings it wants.

        Raises:
            MeshError: the ask named a reranker, which refused.
            ValueError: the expression has no such list.
        """
        ask, pool = found.ask, found.pool
        if found.gathered is not None:
            return await self._scored_expression(found, clock)
        rows = np.arange(len(pool.passages))
        if ask.reranker == "none":
            return Scored(rows, pool.scores, rows[: ask.k])
        began = time.perf_counter()
        rows = rows[: ask.rerank_depth]
        outcome = await self.rerank(ask, pool.rows(rows), clock, first=first_stage(ask, pool, rows))
        clock.record(Stage.RERANK, began)
        if isinstance(outcome, HandledFailure):
            return Scored(rows, pool.scores[rows], rows[: ask.k], degradations=(outcome.degraded,))
        best = contexts.best_first(rows, outcome.scores, pool.passages)[: ask.k]
        return Scored(rows, outcome.scores, best, outcome.reranker, outcome.model_version, outcome.fusion)

    async def reorder(
        self, ask: Ask, pool: Pool, rankings: Sequence[Contexts], clock: Clock
    ) -> tuple[list[Contexts], Relevance | HandledFailure]:
        """Return rankings in the reranker's order, or as they are if it failed, each cut at ``ask.k``.

        The reranker scores every passage of every ranking once.

        Raises:
            MeshError: the ask named a reranker, which refused.
        """
        began = time.perf_counter()
        scored = np.unique(np.concatenate([one.rows.ravel() for one in rankings]))
        outcome = await self.rerank(ask, pool.rows(scored), clock, first=first_stage(ask, pool, scored))
        if isinstance(outcome, HandledFailure):
            cut = [contexts.cut(one, ask.k) for one in rankings]
        else:
            scores = outcome.scores
            cut = await offload(
                self._pool,
                sum(one.rows.size for one in rankings),
                lambda _: [
                    contexts.reordered(one, scored=scored, scores=scores, passages=pool.passages, k=ask.k)
                    for one in rankings
                ],
            )
        clock.record(Stage.RERANK, began)
        return cut, outcome

    async def rerank(
        self,
        ask: Ask,
        passages: Sequence[Passage],
        clock: Clock,
        *,
        first: FirstStage | None = None,
        who: str = "",
        until: Deadline | None = None,
    ) -> Relevance | HandledFailure:
        """Return the reranker's scores of some passages, in their order. ``who``, ``until``: see `attempt`.

        Args:
            first: the retriever's scores, to be fused with.

        Raises:
            MeshError: the ask named a reranker, which refused.
        """
        return await attempt(
            clock,
            Step.RERANK if ask.names_reranker else Step.DEFAULT_RERANK,
            lambda budget: self._reranker.rerank(ask, passages, timeout_s=budget, first=first),
            who=who,
            until=until,
        )

    async def _scored_expression(self, found: Found, clock: Clock) -> Scored:
        if found.gathered is None or found.ask.expression is None:
            raise ValueError("the ask has no expression")
        began = time.perf_counter()
        lists = ExpressionLists(found.ask, found.gathered, clock, self.rerank)
        rows, scores, k = await lists.sampled_part()
        if found.ask.expression.reranks:
            clock.record(Stage.RERANK, began)
        return Scored(
            rows,
            scores,
            rows[:k],
            lists.reranker,
            lists.model_version,
            lists.fusion,
            lists.degradations,
        )

    async def _balance(self, ask: Ask, clock: Clock) -> tuple[ExposureBalance | None, Sequence[Degraded]]:
        """Return what providers are owed, where the ask wants it and somebody knows."""
        if self._balances is None or ask.sampling is None or ask.sampling.balance is None:
            return None, ()
        known = await self._balances.read(ask.collection, ask.sampling.balance.half_life_days, clock)
        return (None, (known.degraded,)) if isinstance(known, HandledFailure) else (known, ())

    async def _draw(
        self, found: Found, sampling: Sampling, scored: Scored, known: ExposureBalance | None
    ) -> tuple[Contexts, Policy | None]:
        if not len(scored.rows):
            return EMPTY_CONTEXTS, None
        question, k, policy = found.ask.question, len(scored.best), None
        with self._around_draw(sampling):
            if sampling.balance is not None and known is not None:
                drawn, policy = await self._pool.run(
                    partial(
                        balanced,
                        sampling.balance,
                        known,
                        scored.scores,
                        found.pool.rows(scored.rows),
                        question,
                        sampling,
                        k,
                        reranked=scored.reranker != "none",
                    )
                )
            elif sampling.target is None:
                drawn = await self._pool.run(contexts.sampled, scored.scores, question, sampling, k)
            else:
                drawn, policy = await self._pool.run(
                    partial(
                        contexts.sampled_to,
                        sampling.target,
                        scored.scores,
                        found.pool.rows(scored.rows),
                        question,
                        sampling,
                        k,
                        reranked=scored.reranker != "none",
                    )
                )
        return Contexts(scored.rows[drawn.rows], drawn.log_probabilities), policy
