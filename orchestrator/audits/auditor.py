"""The flow of an audit: many rankings of one labelled query, every context answered once.

``settled → sample … → report … → done``, with ``degraded`` where a step failed. Samples come in order: the
deterministic ranking, each fairness dial, the oracle; the reports in the same order after all of them, since
the largest utility is that of all.

Source: Kim and Diaz, "Towards Fair RAG", section 3 and appendix C.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from meshkit.compute import ComputePool
from meshkit.deadline import Deadline
from meshkit.errors import DeadlineExceeded, MeshError
from orchestrator import contexts as rankings
from orchestrator.audits.answers import Answers, Outcome
from orchestrator.audits.levels import (
    ORACLE,
    Arranged,
    Level,
    draw_contexts,
    feed_of,
    inclusion_of,
    levels_of,
    narrow_enough,
    reports_of,
    sampled_of,
)
from orchestrator.budgets import Clock, Plan, Setback, attempt, setback_of
from orchestrator.domain import (
    Action,
    Audit,
    AuditEvent,
    Augmentation,
    Contexts,
    Degraded,
    Finished,
    Observation,
    Policy,
    Pool,
    Prompt,
    Ranked,
    SamplingStage,
    Settled,
    Stage,
    UtilityMetric,
)
from orchestrator.exposure import utility
from orchestrator.expressions.running import ExpressionStages, Gathered, Scored
from orchestrator.policy import INSTEAD, Step
from orchestrator.ports import Generator, Receipt, Reranker
from orchestrator.posts import Posts
from orchestrator.search import Search
from ragcore.arrays import FloatArray, IntArray

_SLOW_METRICS: Final = frozenset({UtilityMetric.ROUGE1, UtilityMetric.ROUGE2, UtilityMetric.ROUGE_L})
_INLINE_CHARACTERS: Final = 10_000


class Auditor:
    """Runs audits.

    Args:
        search: finds the pool.
        expressions: ranks where an audit has an expression.
        reranker: scores the pool again.
        generator: writes answers.
        posts: keeps observations for the evaluator.
        plan: budgets and sizes.
        pool: threads that draw and measure.
    """

    def __init__(
        self,
        *,
        search: Search,
        expressions: ExpressionStages,
        reranker: Reranker,
        generator: Generator,
        posts: Posts,
        plan: Plan,
        pool: ComputePool,
    ) -> None:
        self._search = search
        self._expressions = expressions
        self._reranker = reranker
        self._generator = generator
        self._posts = posts
        self._plan = plan
        self._pool = pool

    async def run(self, audit: Audit, deadline: Deadline) -> AsyncGenerator[AuditEvent, None]:
        """Runs one audit; ``Finished`` last. Close it early to cancel everything.

        Raises:
            MeshError: a step failed that the policy has no substitute for.
        """
        clock = Clock(deadline, self._plan)
        degradations: list[Degraded] = []
        began = time.perf_counter()
        found, gathered = await self._search.find(replace(audit.ask, sampling=None), clock)
        clock.took(Stage.RETRIEVE, began)
        if gathered is not None:
            degradations.extend(gathered.degradations)
        if not found.passages:
            degradations.append(
                Degraded(
                    Stage.RETRIEVE,
                    Action.NO_CONTEXT,
                    "NO_PASSAGES",
                    f"the retriever found no passages: {INSTEAD[Action.NO_CONTEXT]}",
                )
            )
            audit = replace(audit, ask=replace(audit.ask, augmentation=Augmentation.DEFAULT))
        arranged, setbacks = await self._arrange(audit, found, gathered, clock)
        degradations.extend(setbacks)
        levels = await self._pool.run(levels_of, audit, found, arranged)
        keys = {key for level in levels for key in level.names()}
        yield Settled(found, arranged.reranker, arranged.model_version, max(1, len(keys)))
        for degraded in degradations:
            yield degraded

        began = time.perf_counter()
        answers = Answers(
            lambda rows: self._answer(audit, found, rows, clock),
            feed_of(levels),
            size=self._plan.batch_size,
            at_once=self._plan.batches_in_flight,
        )
        told: set[str] = set()
        scores: dict[str, float] = {}
        try:
            for level in levels:
                for sample, row in enumerate(level.contexts.rows):
                    outcome = await answers.of(row) if sample < level.num_answers else None
                    if isinstance(outcome, MeshError):
                        degraded = setback_of(Step.OTHER_ANSWERS, outcome).degraded
                        if degraded.reason not in told:
                            told.add(degraded.reason)
                            degradations.append(degraded)
                            yield degraded
                    value = await self._score(audit, outcome, scores)
                    level.outcomes.append(outcome)
                    if value is not None:
                        level.utilities.append(value)
                    yield sampled_of(level, sample, found, row, outcome, value)
                    if narrow_enough(audit, level):
                        level.stopped = sample + 1 < len(level.contexts.rows)
                        break
        finally:
            await answers.close()
        if keys:
            clock.took(Stage.GENERATE, began)

        began = time.perf_counter()
        posts = [] if not audit.ask.observe else self._post(audit, found, arranged, levels, degradations)
        for reported in await self._pool.run(reports_of, audit, found, levels):
            yield reported
        told.clear()
        for post in posts:
            for degraded in (await self._posts.outcome(post, clock))[1]:
                if degraded.reason not in told:
                    told.add(degraded.reason)
                    yield degraded
        if posts:
            clock.took(Stage.OBSERVE, began)
        yield Finished(audit.ask.id, audit.ask.run_id, clock.stage_ms, clock.total_ms)

    async def _arrange(
        self, audit: Audit, found: Pool, gathered: Gathered | None, clock: Clock
    ) -> tuple[Arranged, Sequence[Degraded]]:
        """Ranks the pool; the rankings at each fairness dial are those of an ask with that sampling."""
        ask = audit.ask
        if not found.passages:
            nothing = Contexts(np.empty((1, 0), dtype=np.int64), None)
            repeated = Contexts(np.empty((audit.sampling.num_rankings, 0), dtype=np.int64), None)
            every = len(audit.alphas)
            return Arranged(nothing, [repeated] * every, [None] * every, "none", ""), ()
        degradations: Sequence[Degraded] = ()
        if ask.recipe is not None and gathered is not None:
            scored, degradations = await self._expressions.scored(ask, ask.recipe, gathered, clock)
        elif ask.reranker == "none":
            scored = Scored(np.arange(len(found.passages)), found.scores, ask.k, "none", "")
        elif ask.sampling_stage is SamplingStage.RETRIEVER:
            return await self._reorder(audit, found, clock)
        else:
            scored, degradations = await self._rescored(audit, found, clock)
        return await self._pool.run(draw_contexts, audit, found, scored), degradations

    async def _rescored(self, audit: Audit, found: Pool, clock: Clock) -> tuple[Scored, Sequence[Degraded]]:
        """The first passages of the pool with the reranker's scores, or where it failed the retriever's."""
        began = time.perf_counter()
        rows = np.arange(min(audit.ask.rerank_depth, len(found.passages)))
        outcome = await self._rerank(audit, found, rows, clock)
        clock.took(Stage.RERANK, began)
        if isinstance(outcome, Setback):
            return Scored(rows, found.scores[rows], audit.ask.k, "none", ""), (outcome.degraded,)
        scores, reranker, version = outcome
        order = sorted(rows.tolist(), key=lambda row: (-scores[row], found.passages[row].id))
        return Scored(np.array(order), scores[order], audit.ask.k, reranker, version), ()

    async def _reorder(self, audit: Audit, found: Pool, clock: Clock) -> tuple[Arranged, Sequence[Degraded]]:
        """Rankings drawn over the retriever's scores, each ordered again by the reranker."""
        ask = audit.ask
        every = Scored(np.arange(len(found.passages)), found.scores, ask.rerank_depth, "none", "")
        drawn = await self._pool.run(draw_contexts, audit, found, every)
        began = time.perf_counter()
        lists = [drawn.deterministic, *drawn.sampled]
        scored = np.unique(np.concatenate([one.rows.ravel() for one in lists]))
        outcome = await self._rerank(audit, found, scored, clock)
        clock.took(Stage.RERANK, began)
        if isinstance(outcome, Setback):
            short = replace(every, k=ask.k)
            cut = [rankings.cut(one.rows, one.log_probabilities, ask.k) for one in lists]
            exact = await self._pool.run(inclusion_of, audit, found, short)
            return Arranged(cut[0], cut[1:], exact, "none", ""), (outcome.degraded,)
        scores, reranker, version = outcome
        again = [
            rankings.reordered(
                one.rows,
                one.log_probabilities,
                scored=scored,
                scores=scores,
                passages=found.passages,
                k=ask.k,
            )
            for one in lists
        ]
        return Arranged(again[0], again[1:], [None] * len(audit.alphas), reranker, version), ()

    async def _rerank(
        self, audit: Audit, found: Pool, rows: IntArray, clock: Clock
    ) -> tuple[FloatArray, str, str] | Setback:
        """Scores of the rows, in their order; the reranker, and its version."""
        ask = audit.ask
        outcome = await attempt(
            clock,
            Step.RERANK if ask.names_reranker else Step.DEFAULT_RERANK,
            lambda budget: self._reranker.rerank(
                ask.wording,
                [found.passages[row] for row in rows],
                agent=ask.agent,
                reranker=ask.reranker,
                timeout_s=budget,
            ),
        )
        if isinstance(outcome, Setback):
            return outcome
        return outcome.scores, outcome.reranker, outcome.model_version

    async def _answer(
        self, audit: Audit, found: Pool, rows: Sequence[IntArray], clock: Clock
    ) -> Sequence[Outcome] | Setback:
        """Answers some contexts in one call; waits and asks again where the generator has too much to do."""
        ask = audit.ask
        prompts = [
            Prompt(
                ask.question,
                [found.passages[index] for index in row],
                ask.model,
                ask.augmentation,
                ask.decoding,
                template=ask.template,
            )
            for row in rows
        ]
        while True:
            outcome = await attempt(
                clock,
                Step.AUDIT_ANSWERS,
                lambda budget: self._generator.batch(prompts, timeout_s=budget),
            )
            if not isinstance(outcome, Setback) or outcome.error.retry_after_s is None:
                return outcome
            try:
                left = clock.budget(Stage.GENERATE)
            except DeadlineExceeded:
                return outcome
            if left <= outcome.error.retry_after_s:
                return outcome
            await asyncio.sleep(outcome.error.retry_after_s)

    async def _score(self, audit: Audit, outcome: Outcome | None, scores: dict[str, float]) -> float | None:
        labels = audit.ask.labels
        if outcome is None or isinstance(outcome, MeshError) or not labels.references:
            return None
        text = outcome.text
        if text not in scores:
            long = (len(text) + sum(map(len, labels.references))) > _INLINE_CHARACTERS
            if long or labels.metric in _SLOW_METRICS:
                scores[text] = await self._pool.run(utility, text, labels)
            else:
                scores[text] = utility(text, labels)
        return scores[text]

    def _post(
        self,
        audit: Audit,
        found: Pool,
        arranged: Arranged,
        levels: Sequence[Level],
        degradations: Sequence[Degraded],
    ) -> list[asyncio.Task[Receipt]]:
        """One observation for each level, named by what it says: an audit that is run again counts once."""
        observed_at_us = time.time_ns() // 1000
        posts = []
        for level in levels:
            sampling = None if level.alpha is None else replace(audit.sampling, alpha=level.alpha)
            shown = level.shown()
            oracle = level.policy is Policy.ORACLE
            pool = replace(found, retriever=ORACLE) if oracle else found
            ranked = (
                Ranked(shown, "none", "")
                if oracle
                else Ranked(shown, arranged.reranker, arranged.model_version)
            )
            observation = Observation(
                replace(audit.ask, sampling=sampling, want_report=False),
                pool,
                ranked,
                level.answered(),
                {},
                tuple(degradations),
                observed_at_us=observed_at_us,
            )
            named = replace(observation.ask, id=_identity(level.policy, observation))
            posts.append(self._posts.begin(replace(observation, ask=named)))
        return posts


def _identity(policy: Policy, observation: Observation) -> str:
    """A name of what an observation says, the same whenever the same is said in a run."""
    ask, pool, ranked = observation.ask, observation.pool, observation.ranked
    said = [
        (answered.answer.text, answered.answer.model, answered.answer.model_version, answered.samples)
        for answered in observation.answers
    ]
    facts = (
        *(ask.run_id, ask.query_id, ask.question, ask.collection, policy.value, ask.sampling),
        *(
            pool.retriever,
            pool.index_version,
            ranked.reranker,
            ranked.model_version,
            ranked.contexts.rows.shape,
        ),
        *([passage.id for passage in pool.passages], ranked.contexts.rows.tolist(), said),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
