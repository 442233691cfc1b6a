"""The flow of an audit: many rankings of one labelled query, every context answered once.

Events: ``settled → sample … → report … → done``, with ``degraded`` where a step failed. Samples come in
order: the deterministic ranking, each fairness dial, the oracle. Reports come in the same order after all
samples, because the largest utility is that of all of them.

Source: Kim and Diaz (2025), "Towards Fair RAG", section 3 and appendix C.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import numpy as np

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError
from evenmesh_core.arrays import IntArray
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, PipelineConfig, attempt, handle
from evenmesh_orchestrator.asks.contexts import batch_size
from evenmesh_orchestrator.asks.exposure import offload, scoring_size, utility
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.asks.generation import check_model
from evenmesh_orchestrator.asks.ranking import RankingStage, Scored
from evenmesh_orchestrator.asks.retrieval import Found, RetrievalStage
from evenmesh_orchestrator.audits.answers import Answers, Outcome
from evenmesh_orchestrator.audits.levels import (
    ORACLE,
    Level,
    RankedLevels,
    contexts_to_answer,
    draw_contexts,
    inclusion_of,
    is_narrow_enough,
    levels_of,
    reports_of,
    sample_of,
)
from evenmesh_orchestrator.domain import (
    EMPTY_CONTEXTS,
    Ask,
    Audit,
    AuditEvent,
    Contexts,
    Degraded,
    Observation,
    Pool,
    Ranked,
    Stage,
    word_of,
)
from evenmesh_orchestrator.observations.publisher import ObservationPublisher
from evenmesh_orchestrator.ports import Generator, Models, Receipt


class Auditor:
    """Runs audits.

    Args:
        retrieval: finds the pool.
        ranking: scores and orders it.
        generator: writes answers.
        publisher: publishes observations.
        config: budgets and sizes.
        pool: threads that draw and measure.
        models: knows which models there are; None where the generator alone shall tell.
    """

    def __init__(
        self,
        *,
        retrieval: RetrievalStage,
        ranking: RankingStage,
        generator: Generator,
        publisher: ObservationPublisher,
        config: PipelineConfig,
        pool: TenantPool,
        models: Models | None = None,
    ) -> None:
        self._models = models
        self._retrieval = retrieval
        self._ranking = ranking
        self._generator = generator
        self._publisher = publisher
        self._config = config
        self._pool = pool

    async def run(self, audit: Audit, deadline: Deadline) -> AsyncGenerator[AuditEvent, None]:
        """Run one audit; yield ``Finished`` last. Close it early to cancel all work.

        Raises:
            MeshError: a step failed, and the policy has no substitute.
        """
        clock = Clock(deadline, self._config)
        await check_model(self._models, audit.ask, clock)
        began = time.perf_counter()
        found = await self._retrieval.find(replace(audit.ask, sampling=None), clock)
        clock.record(Stage.RETRIEVE, began)
        pool, audit = found.pool, replace(audit, ask=found.ask)
        ranked, failures = await self._rank(audit, found, clock)
        degradations = [*found.degradations, *failures]
        levels = await self._pool.run(levels_of, audit, pool, ranked)
        keys = {key for level in levels for key in level.context_keys()}
        yield pb.AuditSettled(
            passage_ids=[passage.id for passage in pool.passages],
            providers=[passage.attributes.get("provider", "") for passage in pool.passages],
            retriever=pool.retriever,
            index_version=pool.index_version,
            reranker=ranked.reranker,
            reranker_version=ranked.model_version,
            num_contexts=max(1, len(keys)),
        )
        for degraded in degradations:
            yield degraded

        began = time.perf_counter()
        answers = Answers(
            lambda rows: self._answer(audit.ask, pool, rows, clock),
            contexts_to_answer(levels),
            batch_size=batch_size(audit.ask, pool.passages, audit.ask.k, self._config.batch_size),
            in_flight=self._config.batches_in_flight,
        )
        reported: set[str] = set()
        scores: dict[str, float] = {}
        try:
            for level in levels:
                for sample, row in enumerate(level.contexts.rows):
                    outcome = await answers.of(row) if sample < level.num_answers else None
                    if isinstance(outcome, MeshError):
                        degraded = handle(Step.OTHER_ANSWERS, outcome).degraded
                        if degraded.reason not in reported:
                            reported.add(degraded.reason)
                            degradations.append(degraded)
                            yield degraded
                    value = await self._score(audit.ask, outcome, scores)
                    level.outcomes.append(outcome)
                    if value is not None:
                        level.utilities.append(value)
                    yield sample_of(level, sample, pool, row, outcome, value)
                    if is_narrow_enough(audit, level):
                        level.stopped = sample + 1 < len(level.contexts.rows)
                        break
        finally:
            await answers.close()
        if keys:
            clock.record(Stage.GENERATE, began)

        began = time.perf_counter()
        submitted = self._publish(audit, pool, ranked, levels, degradations) if audit.ask.observe else []
        for report in await self._pool.run(reports_of, audit, pool, levels):
            yield report
        _, late = await self._publisher.outcome(submitted, clock)
        for degraded in late:
            yield degraded
        if submitted:
            clock.record(Stage.OBSERVE, began)
        yield clock.finished(audit.ask)

    async def _rank(
        self, audit: Audit, found: Found, clock: Clock
    ) -> tuple[RankedLevels, Sequence[Degraded]]:
        """Return the rankings without sampling and at each dial: those of an ask with that sampling."""
        ask, pool = audit.ask, found.pool
        if not pool.passages:
            repeated = Contexts(np.empty((audit.sampling.num_rankings, 0), dtype=np.int64), None)
            dials = len(audit.alphas)
            return RankedLevels(EMPTY_CONTEXTS, [repeated] * dials, [None] * dials), ()
        reorders = ask.expression is None and ask.reranker != "none"
        if reorders and ask.sampling_stage == pb.SAMPLING_STAGE_RETRIEVER:
            return await self._reorder(audit, found, clock)
        scored = await self._ranking.scored(found, clock)
        return await self._pool.run(draw_contexts, audit, pool, scored), scored.degradations

    async def _reorder(
        self, audit: Audit, found: Found, clock: Clock
    ) -> tuple[RankedLevels, Sequence[Degraded]]:
        """Draw rankings over the retriever's scores and let the reranker reorder each."""
        ask, pool = audit.ask, found.pool
        rows = np.arange(len(pool.passages))
        drawn = await self._pool.run(
            draw_contexts, audit, pool, Scored(rows, pool.scores, rows[: ask.rerank_depth])
        )
        (first, *sampled), outcome = await self._ranking.reorder(
            ask, pool, [drawn.deterministic, *drawn.sampled], clock
        )
        if isinstance(outcome, HandledFailure):
            cut = Scored(rows, pool.scores, rows[: ask.k])
            exact = await self._pool.run(inclusion_of, audit, pool, cut)
            return RankedLevels(first, sampled, exact), (outcome.degraded,)
        unknown = [None] * len(sampled)
        return RankedLevels(first, sampled, unknown, outcome.reranker, outcome.model_version), ()

    async def _answer(
        self, ask: Ask, pool: Pool, rows: Sequence[IntArray], clock: Clock
    ) -> Sequence[Outcome] | HandledFailure:
        """Answer several contexts in one call; wait and ask again while the generator is overloaded."""
        prompts = [ask.prompt(pool.rows(row)) for row in rows]
        while True:
            outcome = await attempt(
                clock,
                Step.AUDIT_ANSWERS,
                lambda budget: self._generator.batch(prompts, timeout_s=budget),
            )
            if not isinstance(outcome, HandledFailure) or outcome.error.retry_after_s is None:
                return outcome
            try:
                left = clock.budget(Stage.GENERATE)
            except DeadlineExceeded:
                return outcome
            if left <= outcome.error.retry_after_s:
                return outcome
            await asyncio.sleep(outcome.error.retry_after_s)

    async def _score(self, ask: Ask, outcome: Outcome | None, scores: dict[str, float]) -> float | None:
        if outcome is None or isinstance(outcome, MeshError) or not ask.labels.references:
            return None
        text = outcome.text
        if text not in scores:
            size = scoring_size([text], ask.labels)
            scores[text] = await offload(self._pool, size, lambda check: utility(text, ask.labels, check))
        return scores[text]

    def _publish(
        self,
        audit: Audit,
        pool: Pool,
        ranked: RankedLevels,
        levels: Sequence[Level],
        degradations: Sequence[Degraded],
    ) -> list[asyncio.Task[Receipt]]:
        """Publish one observation per level, with an id of its content: a repeated audit counts once."""
        observed_at_us = time.time_ns() // 1000
        tasks = []
        for level in levels:
            oracle = level.policy == pb.AUDIT_POLICY_ORACLE
            sampling = None if level.alpha is None else replace(audit.sampling, alpha=level.alpha)
            by = () if oracle else (ranked.reranker, ranked.model_version)
            observation = Observation(
                replace(audit.ask, sampling=sampling, want_report=False),
                replace(pool, retriever=ORACLE) if oracle else pool,
                Ranked(level.shown(), *by),
                level.answered(),
                {},
                tuple(degradations),
                observed_at_us=observed_at_us,
            )
            named = replace(observation.ask, id=_identity(level.policy, observation))
            tasks.append(self._publisher.publish(replace(observation, ask=named)))
        return tasks


def _identity(policy: pb.AuditPolicy.ValueType, observation: Observation) -> str:
    """Return an id of what an observation says: the same content in the same run has the same id."""
    ask, pool, ranked = observation.ask, observation.pool, observation.ranked
    said = [
        (answered.answer.text, answered.answer.model, answered.answer.model_version, answered.samples)
        for answered in observation.answers
    ]
    facts = (
        *(ask.run_id, ask.query_id, ask.question, ask.collection, word_of(pb.AuditPolicy, policy)),
        *(ask.sampling, pool.retriever, pool.index_version, ranked.reranker, ranked.model_version),
        *(ranked.contexts.rows.shape, [passage.id for passage in pool.passages]),
        *(ranked.contexts.rows.tolist(), said),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
