"""The flow of an ensemble: all members search, rank and answer concurrently, and answers vote as they arrive.

Events: ``retrieved → ranked → answer → vote …`` of each member as they happen, then the final ``vote``,
``report`` and ``done``. All members share the time of the ask; a late one is missing in the vote.

Source: Li et al. (2024), "Unraveling and Mitigating Retriever Inconsistencies in Retrieval-Augmented Large
Language Models", section 4.1; voting before all answers are there is our addition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_kit.compute import steps
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, PipelineConfig, attempt
from evenmesh_orchestrator.asks.citations import found_citations
from evenmesh_orchestrator.asks.exposure import measure_shown
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.asks.generation import check_model
from evenmesh_orchestrator.asks.ranking import RankingStage
from evenmesh_orchestrator.asks.retrieval import RetrievalStage
from evenmesh_orchestrator.domain import (
    EMPTY_CONTEXTS,
    EMPTY_POOL,
    Answered,
    Ask,
    Contexts,
    Degraded,
    EnsembleAsk,
    Event,
    Failed,
    Observation,
    Pool,
    Ranked,
    Retrieved,
    Stage,
)
from evenmesh_orchestrator.ensembles.coalescing import (
    Coalescer,
    CoalescingGenerator,
    CoalescingReranker,
    CoalescingRetriever,
    SearchKey,
)
from evenmesh_orchestrator.ensembles.votes import EnsembleVote
from evenmesh_orchestrator.observations.publisher import ObservationPublisher
from evenmesh_orchestrator.ports import Generator, Models, Reranker, Retriever, VoteSessions


@dataclass(slots=True)
class _Member:
    """A member and its results so far."""

    index: int
    ask: Ask
    name: str
    pool: Pool | None = None
    ranked: Ranked = field(default_factory=lambda: Ranked(EMPTY_CONTEXTS))
    answered: Answered | None = None
    failed: Failed | None = None
    degradations: list[Degraded] = field(default_factory=list)
    passages: Sequence[Passage] = ()


@dataclass(frozen=True, slots=True)
class _ContextReady:
    """The context of a member is known."""

    member: _Member


_Message = Event | _ContextReady | _Member | asyncio.Task[None]
"""What the tasks of members send: events, contexts, a member that is done, and its task."""


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages that all members share."""

    retrieval: RetrievalStage
    ranking: RankingStage
    generator: Generator


class EnsembleRunner:
    """Runs ensembles.

    Args:
        retriever: searches.
        reranker: scores passages again.
        generator: writes answers.
        votes: opens the vote of an ask.
        publisher: publishes observations, one per member and one of the vote.
        config: budgets.
        pool: threads that rank and measure.
        models: knows which models there are; None where the generator alone shall tell.
    """

    def __init__(
        self,
        *,
        retriever: Retriever,
        reranker: Reranker,
        generator: Generator,
        votes: VoteSessions,
        publisher: ObservationPublisher,
        config: PipelineConfig,
        pool: TenantPool,
        models: Models | None = None,
    ) -> None:
        self._models = models
        self._retriever = retriever
        self._reranker = reranker
        self._generator = generator
        self._votes = votes
        self._publisher = publisher
        self._config = config
        self._pool = pool

    async def run(self, ensemble: EnsembleAsk, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Run one ensemble; yield ``Finished`` last. Close it early to cancel all work.

        Raises:
            MeshError: there is no such model, or no member has an answer.
        """
        clock = Clock(deadline, self._config)
        await check_model(self._models, ensemble.ask, clock)
        coalescer = Coalescer()
        generator = CoalescingGenerator(self._generator, coalescer)
        retriever = CoalescingRetriever(self._retriever, coalescer, _depths(ensemble))
        stages = _Stages(
            RetrievalStage(retriever, generator),
            RankingStage(CoalescingReranker(self._reranker, coalescer), self._pool),
            generator,
        )
        queue: asyncio.Queue[_Message] = asyncio.Queue()
        members = [
            _Member(index, ask, "" if ask.expression is None else ask.expression.text)
            for index, ask in enumerate(ensemble.members)
        ]
        tasks = [asyncio.create_task(self._run_member(member, stages, clock, queue)) for member in members]
        for task in tasks:
            task.add_done_callback(queue.put_nowait)
        vote = EnsembleVote(self._votes, ensemble, [member.name for member in members], clock, self._config)
        indices: dict[str, int] = {}  # of each passage in all that was retrieved, as the caller counts them
        began = time.perf_counter()
        try:
            waiting = len(members)
            while waiting:
                event = await queue.get()
                match event:
                    case Retrieved(pool):
                        new = [at for at, one in enumerate(pool.passages) if one.id not in indices]
                        indices.update({pool.passages[at].id: len(indices) + i for i, at in enumerate(new)})
                        if new:
                            yield Retrieved(_part(pool, new))
                    case asyncio.Task():
                        event.result()  # raises whatever is not a member's own failure
                    case _ContextReady(member):
                        yield replace(member.ranked, member=member.name, contexts=_reindexed(member, indices))
                    case _Member():
                        waiting -= 1
                        outcome = event.answered or event.failed
                        if outcome is not None:
                            yield outcome
                        answer = None if event.answered is None else event.answered.answer.text
                        for late in await vote.add(event.index, answer):
                            yield late
                    case _:
                        yield event
            clock.record(Stage.GENERATE, began)
            if not any(member.answered for member in members):
                raise next(member.failed.error for member in members if member.failed is not None)
            result = vote.result(final=True)
            yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await coalescer.close()
            vote.close()
        async for event in self._close(ensemble, members, result, clock):
            yield event

    async def _run_member(
        self,
        member: _Member,
        stages: _Stages,
        clock: Clock,
        queue: asyncio.Queue[_Message],
    ) -> None:
        """Search, rank and answer as one member; its failure does not fail the ensemble."""

        def degrade(degradations: Sequence[Degraded]) -> None:
            for one in degradations:
                named = replace(one, message=f"{member.name}: {one.message}")
                member.degradations.append(named)
                queue.put_nowait(named)

        try:
            found = await stages.retrieval.find(member.ask, clock)
            member.pool = found.pool
            queue.put_nowait(Retrieved(found.pool))
            degrade(found.degradations)
            member.ranked, failures = await stages.ranking.rank(found, clock)
            degrade(failures)
            member.passages = found.pool.rows(member.ranked.contexts.rows[0])
            queue.put_nowait(_ContextReady(member))
            prompt = found.ask.prompt(member.passages)
            outcome = await attempt(
                clock,
                Step.OTHER_ANSWERS,
                lambda budget: stages.generator.batch([prompt], timeout_s=budget),
                who=f"the generator, for {member.name},",
            )
            if isinstance(outcome, HandledFailure):
                degrade([outcome.degraded])
                raise outcome.error
            (answer,) = outcome
            if isinstance(answer, MeshError):
                raise answer
            cited = await found_citations(self._pool, answer, member.passages)
            member.answered = Answered(answer, (), cited, member.name)
        except MeshError as error:
            member.failed = Failed((), error, member.name)
        queue.put_nowait(member)

    async def _close(
        self, ensemble: EnsembleAsk, members: Sequence[_Member], result: pb.VoteEvent, clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Report what the members showed; observe each as an ask of its own, and the vote."""
        began = time.perf_counter()
        pools = [(member, member.pool) for member in members if member.pool is not None]
        submitted = []
        if ensemble.ask.observe:
            observations = [_observation(ensemble, member, pool) for member, pool in pools]
            observations.append(_vote_observation(ensemble, members, result, clock))
            submitted = list(map(self._publisher.publish, observations))
        pool, shown = _merged(pools)
        answers = [member.answered for member, _ in pools if member.answered is not None]
        report = await steps.run(
            self._pool, lambda check: measure_shown(pool, shown, answers, ensemble.ask.labels, check)
        )
        run, late = await self._publisher.outcome(submitted, clock)
        if run is not None:
            report.run.CopyFrom(run)
        yield report
        for one in late:
            yield one
        if submitted:
            clock.record(Stage.OBSERVE, began)
        yield clock.finished(ensemble.ask)


def _observation(ensemble: EnsembleAsk, member: _Member, pool: Pool) -> Observation:
    return Observation(
        replace(member.ask, id=f"{ensemble.ask.id}-{member.index}", want_report=False),
        pool,
        member.ranked,
        [] if member.answered is None else [replace(member.answered, samples=(0,))],
        {},
        tuple(member.degradations),
        observed_at_us=time.time_ns() // 1000,
    )


def _vote_observation(
    ensemble: EnsembleAsk, members: Sequence[_Member], result: pb.VoteEvent, clock: Clock
) -> Observation:
    """Return the final answer and the members that agree; what was shown is in their own observations."""
    answers = [
        replace(member.answered, samples=(member.index,)) for member in members if member.answered is not None
    ]
    winner = next((at for at, one in enumerate(answers) if one.member == result.member), None)
    return Observation(
        replace(ensemble.ask, id=f"{ensemble.ask.id}-vote"),
        replace(EMPTY_POOL, retriever=ensemble.name),
        Ranked(EMPTY_CONTEXTS),
        answers,
        dict(clock.stage_ms),
        observed_at_us=time.time_ns() // 1000,
        retrievers=tuple(member.name for member in members),
        vote_winner=winner,
    )


def _depths(ensemble: EnsembleAsk) -> dict[SearchKey, int]:
    """Return the largest depth that any member wants, per search."""
    depths: dict[SearchKey, int] = {}
    for ask in ensemble.members:
        for place in ask.expression.places.values() if ask.expression is not None else ():
            key = (place.collection, place.web, place.retriever)
            depths[key] = max(depths.get(key, 0), place.depth)
    return depths


def _part(pool: Pool, places: Sequence[int]) -> Pool:
    """Return some passages of a pool."""
    return replace(
        pool,
        passages=[pool.passages[place] for place in places],
        scores=pool.scores[list(places)],
        rankings=np.arange(len(places), dtype=np.int64)[None, :],
    )


def _reindexed(member: _Member, indices: Mapping[str, int]) -> Contexts:
    """Return a member's context as indices into all that was retrieved instead of its own pool."""
    contexts = member.ranked.contexts
    row = [indices[passage.id] for passage in member.passages]
    return replace(contexts, rows=np.array([row], dtype=np.int64).reshape(contexts.rows.shape))


def _merged(pools: Sequence[tuple[_Member, Pool]]) -> tuple[Pool, list[list[int]]]:
    """Return one pool of all members, each passage once, and each member's context as indices into it."""
    index: dict[str, int] = {}
    passages: list[Passage] = []
    for _, pool in pools:
        for passage in pool.passages:
            if passage.id not in index:
                index[passage.id] = len(passages)
                passages.append(passage)
    merged = replace(EMPTY_POOL, passages=passages, scores=np.zeros(len(passages)))
    return merged, [[index[passage.id] for passage in member.passages] for member, _ in pools]
