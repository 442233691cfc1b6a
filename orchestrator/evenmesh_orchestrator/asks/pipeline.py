"""The flow of an ask: retrieve, rerank, generate, observe, each within its share of the caller's time.

Events: ``retrieved → ranked → delta … → answer … → report → done``, with ``degraded`` where a step failed and
:mod:`evenmesh_orchestrator.asks.failure_policy` has a substitute, and ``failed`` for a context without an
answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh_core.arrays import FloatArray
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.asks.balance import BalanceReader
from evenmesh_orchestrator.asks.budgets import Clock, PipelineConfig
from evenmesh_orchestrator.asks.exposure import measure, offload, scoring_size
from evenmesh_orchestrator.asks.generation import GenerationStage, check_model
from evenmesh_orchestrator.asks.merit import merit_of
from evenmesh_orchestrator.asks.ranking import RankingStage
from evenmesh_orchestrator.asks.retrieval import Found, RetrievalStage
from evenmesh_orchestrator.audits.auditor import Auditor
from evenmesh_orchestrator.domain import (
    Answered,
    Ask,
    Audit,
    AuditEvent,
    Degraded,
    EnsembleAsk,
    Event,
    Observation,
    Ranked,
    Retrieved,
    Sampling,
    Stage,
)
from evenmesh_orchestrator.ensembles.runner import EnsembleRunner
from evenmesh_orchestrator.observations.publisher import ObservationPublisher
from evenmesh_orchestrator.ports import (
    Balances,
    Generator,
    Models,
    Observer,
    Receipt,
    Reranker,
    Retriever,
    VoteSessions,
)


class Pipeline:
    """Runs asks, ensembles and audits.

    Args:
        retriever: finds candidates.
        reranker: scores them again.
        generator: writes answers.
        observer: delivers observations to the evaluator.
        config: budgets and sizes.
        pool: threads for computations that are too large for the event loop.
        votes: opens the votes of ensembles.
        around_draw: a context manager around each draw of rankings, for telemetry.
        balances: knows what providers are owed; None where asks may not want it.
        models: knows which models there are; None where the generator alone shall tell.
    """

    def __init__(
        self,
        *,
        retriever: Retriever,
        reranker: Reranker,
        generator: Generator,
        observer: Observer,
        config: PipelineConfig,
        pool: TenantPool,
        votes: VoteSessions,
        around_draw: Callable[[Sampling], AbstractContextManager[object]] = nullcontext,
        balances: Balances | None = None,
        models: Models | None = None,
    ) -> None:
        self._models = models
        self._config = config
        self._pool = pool
        self._retrieval = RetrievalStage(retriever, generator)
        self._ranking = RankingStage(
            reranker, pool, around_draw, None if balances is None else BalanceReader(balances)
        )
        self._generation = GenerationStage(generator, config, pool)
        self._publisher = ObservationPublisher(observer, config)
        self._ensembles = EnsembleRunner(
            retriever=retriever,
            reranker=reranker,
            generator=generator,
            votes=votes,
            publisher=self._publisher,
            config=config,
            pool=pool,
            models=models,
        )
        self._auditor = Auditor(
            retrieval=self._retrieval,
            ranking=self._ranking,
            generator=generator,
            publisher=self._publisher,
            config=config,
            pool=pool,
            models=models,
        )

    async def ask(self, ask: Ask, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Answer one ask; yield events as they happen, ``Finished`` last. Close it early to cancel all work.

        Raises:
            MeshError: a step failed, and the policy has no substitute.
        """
        clock = Clock(deadline, self._config)
        await check_model(self._models, ask, clock)
        began = time.perf_counter()
        found = await self._retrieval.find(ask, clock)
        if ask.reads_passages:
            clock.record(Stage.RETRIEVE, began)
        searched = ask.reads_passages and not ask.web
        yield Retrieved(found.pool, ask.collection if searched else "")
        degradations = list(found.degradations)
        for degraded in degradations:
            yield degraded
        ask = found.ask

        ranked, failures = await self._ranking.rank(found, clock)
        for degraded in failures:
            degradations.append(degraded)
            yield degraded
        merit = self._merit(found, ranked)  # while the answers are written
        try:
            yield ranked

            answers: list[Answered] = []
            if ask.num_answers:
                began = time.perf_counter()
                async with aclosing(
                    self._generation.answer(ask, found.pool, ranked.contexts, clock)
                ) as events:
                    async for event in events:
                        if isinstance(event, Answered):
                            answers.append(event)
                        elif isinstance(event, Degraded):
                            degradations.append(event)
                        yield event
                clock.record(Stage.GENERATE, began)

            async with aclosing(self._close(found, ranked, answers, degradations, clock, merit)) as events:
                async for event in events:
                    yield event
        finally:
            if merit is not None:
                merit.cancel()

    def ensemble(self, ensemble: EnsembleAsk, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Run one ensemble; see :meth:`evenmesh_orchestrator.ensembles.runner.EnsembleRunner.run`."""
        return self._ensembles.run(ensemble, deadline)

    def audit(self, audit: Audit, deadline: Deadline) -> AsyncGenerator[AuditEvent, None]:
        """Run one audit; see :meth:`evenmesh_orchestrator.audits.auditor.Auditor.run`."""
        return self._auditor.run(audit, deadline)

    async def drain(self) -> None:
        """Wait until every pending observation is stored or has failed."""
        await self._publisher.drain()

    async def _close(
        self,
        found: Found,
        ranked: Ranked,
        answers: Sequence[Answered],
        degradations: Sequence[Degraded],
        clock: Clock,
        merit: asyncio.Task[FloatArray] | None,
    ) -> AsyncGenerator[Event, None]:
        """Report and observe. The outbox stores the observation while the report is sent."""
        ask, pool = found.ask, found.pool
        began = time.perf_counter()
        submitted: list[asyncio.Task[Receipt]] = []
        if ask.observe:
            observation = Observation(
                ask,
                pool,
                ranked,
                answers,
                dict(clock.stage_ms),
                tuple(degradations),
                observed_at_us=time.time_ns() // 1000,
                conversation=None if ask.conversation is None else await ask.conversation(pool, answers),
                merit=None if merit is None else await merit,
            )
            submitted.append(self._publisher.publish(observation))
        report = await self._measure(found, ranked, answers)
        late: Sequence[Degraded] = ()
        if ask.want_report:
            run, late = await self._publisher.outcome(submitted, clock)
            if run is not None:
                report.run.CopyFrom(run)
        yield report
        if not ask.want_report:
            _, late = await self._publisher.outcome(submitted, clock)
        if ask.observe:
            clock.record(Stage.OBSERVE, began)
        for one in late:
            yield one
        yield clock.finished(ask)

    def _merit(self, found: Found, ranked: Ranked) -> asyncio.Task[FloatArray] | None:
        """Start computing what passages deserve, for the observation; None where nobody knows."""
        if not found.ask.observe or ranked.relevance is None:
            return None
        return asyncio.create_task(self._pool.run(merit_of, found.pool, ranked.relevance))

    async def _measure(self, found: Found, ranked: Ranked, answers: Sequence[Answered]) -> pb.ExposureReport:
        pool, contexts, labels = found.pool, ranked.contexts, found.ask.labels
        scoring = scoring_size((one.answer.text for one in answers), labels)
        size = contexts.rows.size + len(pool.passages) + scoring
        return await offload(self._pool, size, lambda check: measure(pool, contexts, answers, labels, check))
