"""The flow of an ensemble: every member searches, ranks and answers at once, and answers vote as they come.

``retrieved → ranked → answer → vote …`` of each member in the order they come, then the final ``vote``,
``report`` and ``done``. The time of the ask is that of all members; who is late is missing in the vote.

Source: Li et al., "Unraveling and Mitigating Retriever Inconsistencies in Retrieval-Augmented Large Language
Models", section 4.1; voting while answers come in is ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc
import numpy as np

from meshkit.compute import ComputePool
from meshkit.deadline import Deadline
from meshkit.errors import DeadlineExceeded, MeshError
from orchestrator.budgets import Clock, Plan, Setback, attempt, setback_of
from orchestrator.citations import citations
from orchestrator.domain import (
    Action,
    Answered,
    Ask,
    Augmentation,
    Contexts,
    Degraded,
    EnsembleAsk,
    Event,
    Failed,
    Finished,
    Observation,
    Passage,
    Pool,
    Prompt,
    Ranked,
    Reported,
    Retrieved,
    Stage,
    Voted,
)
from orchestrator.ensembles.ballots import LocalBallot
from orchestrator.ensembles.sharing import Origin, Shared, SharedGenerator, SharedReranker, SharedRetriever
from orchestrator.exposure import measure_shown
from orchestrator.expressions.running import ExpressionStages
from orchestrator.policy import INSTEAD, Step
from orchestrator.ports import Ballot, Generator, Reranker, Retriever, Standing, Votes
from orchestrator.posts import Posts


@dataclass(slots=True)
class _Member:
    """What a member has done so far."""

    place: int
    ask: Ask
    name: str
    pool: Pool
    ranked: Ranked
    answered: Answered | None = None
    failed: Failed | None = None
    degradations: list[Degraded] = field(default_factory=list)
    passages: Sequence[Passage] = ()


class Chorus:
    """Runs ensembles.

    Args:
        retriever: searches.
        reranker: scores again what members want scored again.
        generator: writes answers.
        votes: lets them vote.
        posts: keeps observations, one for each member.
        plan: budgets.
        pool: threads that measure.
    """

    def __init__(
        self,
        *,
        retriever: Retriever,
        reranker: Reranker,
        generator: Generator,
        votes: Votes,
        posts: Posts,
        plan: Plan,
        pool: ComputePool,
    ) -> None:
        self._retriever = retriever
        self._reranker = reranker
        self._generator = generator
        self._votes = votes
        self._posts = posts
        self._plan = plan
        self._pool = pool

    async def run(self, ensemble: EnsembleAsk, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Runs one ensemble; ``Finished`` last. Close it early to cancel everything.

        Raises:
            MeshError: no member has an answer.
        """
        clock = Clock(deadline, self._plan)
        shared = Shared()
        generator = SharedGenerator(self._generator, shared)
        stages = ExpressionStages(
            retriever=SharedRetriever(self._retriever, shared, _depths(ensemble)),
            reranker=SharedReranker(self._reranker, shared),
            generator=generator,
            pool=self._pool,
        )
        news: asyncio.Queue[Event | _Member | _Settled | asyncio.Task[None]] = asyncio.Queue()
        members = [
            _Member(
                place,
                ask,
                ask.recipe.text if ask.recipe is not None else "",
                _NOTHING,
                Ranked(_NO_CONTEXT, "none", ""),
            )
            for place, ask in enumerate(ensemble.members)
        ]
        tasks = [
            asyncio.create_task(self._member(member, stages, generator, clock, news)) for member in members
        ]
        for task in tasks:
            task.add_done_callback(news.put_nowait)
        poll = _Poll(self._votes, ensemble, [member.name for member in members], clock, self._plan)
        told: dict[str, int] = {}  # the caller's index of each passage, in the order they were told
        began = time.perf_counter()
        try:
            waiting = len(members)
            while waiting:
                event = await news.get()
                match event:
                    case Retrieved(pool):
                        fresh = [at for at, one in enumerate(pool.passages) if one.id not in told]
                        told.update({pool.passages[at].id: len(told) + i for i, at in enumerate(fresh)})
                        if fresh:
                            yield Retrieved(_part(pool, fresh))
                    case _Settled(member):
                        yield replace(member.ranked, member=member.name, contexts=_as_told(member, told))
                    case asyncio.Task():
                        event.result()  # raises what no member may end with
                    case _Member():
                        waiting -= 1
                        outcome = event.answered or event.failed
                        if outcome is not None:
                            yield outcome
                        for late in await poll.cast(event):
                            yield late
                    case _:
                        yield event
            clock.took(Stage.GENERATE, began)
            if not any(member.answered for member in members):
                raise next(member.failed.error for member in members if member.failed is not None)
            voted = poll.final()
            yield voted
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await shared.close()
            poll.close()
        async for event in self._close(ensemble, members, voted, clock):
            yield event

    async def _member(
        self,
        member: _Member,
        stages: ExpressionStages,
        generator: Generator,
        clock: Clock,
        news: asyncio.Queue[Event | _Member | _Settled | asyncio.Task[None]],
    ) -> None:
        """Searches, ranks and answers as one member, and tells of it; its failure is its own."""
        try:
            await self._sing(member, stages, generator, clock, news)
        except MeshError as error:
            member.failed = Failed((), error, member.name)
        news.put_nowait(member)

    async def _sing(
        self,
        member: _Member,
        stages: ExpressionStages,
        generator: Generator,
        clock: Clock,
        news: asyncio.Queue[Event | _Member | _Settled | asyncio.Task[None]],
    ) -> None:
        ask, recipe = member.ask, member.ask.recipe
        if recipe is None:
            raise ValueError("a member has an expression")

        def degraded(one: Degraded) -> None:
            named = replace(one, message=f"{member.name}: {one.message}")
            member.degradations.append(named)
            news.put_nowait(named)

        if ask.augmentation.reads_passages:
            gathered = await stages.gather(ask, recipe, clock)
            member.pool = gathered.pool
            for one in gathered.degradations:
                degraded(one)
            news.put_nowait(Retrieved(gathered.pool))
            if gathered.pool.passages:
                ranked, setbacks = await stages.arrange(ask, recipe, gathered, clock)
                for one in setbacks:
                    degraded(one)
                member.ranked = ranked
            else:
                degraded(
                    Degraded(
                        Stage.RETRIEVE,
                        Action.NO_CONTEXT,
                        "NO_PASSAGES",
                        f"the retriever found no passages: {INSTEAD[Action.NO_CONTEXT]}",
                    )
                )
                ask = replace(ask, augmentation=Augmentation.DEFAULT)
        else:
            member.pool = replace(_NOTHING, retriever=recipe.text)
        member.passages = [member.pool.passages[index] for index in member.ranked.contexts.rows[0]]
        news.put_nowait(_Settled(member))
        prompt = Prompt(ask.question, member.passages, ask.model, ask.augmentation, ask.decoding)
        outcome = await attempt(
            clock,
            Step.OTHER_ANSWERS,
            lambda budget: generator.batch([prompt], timeout_s=budget),
            who=f"the generator, for {member.name},",
        )
        if isinstance(outcome, Setback):
            degraded(outcome.degraded)
            raise outcome.error
        (answer,) = outcome
        if isinstance(answer, MeshError):
            raise answer
        member.answered = Answered(answer, (), citations(answer.text, member.passages), member.name)

    async def _close(
        self, ensemble: EnsembleAsk, members: Sequence[_Member], voted: Voted, clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Reports what the members were shown, and observes each as an ask of its own, and the vote."""
        began = time.perf_counter()
        ranked = [member for member in members if member.pool is not _NOTHING]
        posts = []
        if ensemble.ask.observe:
            for member in ranked:
                answers = [replace(member.answered, samples=(0,))] if member.answered is not None else []
                posts.append(
                    self._posts.begin(
                        Observation(
                            replace(member.ask, id=f"{ensemble.ask.id}-{member.place}", want_report=False),
                            member.pool,
                            member.ranked,
                            answers,
                            {},
                            tuple(member.degradations),
                            observed_at_us=time.time_ns() // 1000,
                        )
                    )
                )
            posts.append(self._posts.begin(_vote(ensemble, members, voted, clock)))
        pool, shown = _together(ranked)
        said = [member.answered for member in ranked if member.answered is not None]
        exposure = await self._pool.run(measure_shown, pool, shown, said, ensemble.ask.labels)
        run: object | None = None
        told: set[str] = set()
        late: list[Degraded] = []
        for post in posts:
            report, degraded = await self._posts.outcome(post, clock)
            run = report if report is not None else run
            for one in degraded:
                if one.reason not in told:
                    told.add(one.reason)
                    late.append(one)
        yield Reported(exposure, run)
        for one in late:
            yield one
        if posts:
            clock.took(Stage.OBSERVE, began)
        yield Finished(ensemble.ask.id, ensemble.ask.run_id, clock.stage_ms, clock.total_ms)


@dataclass(frozen=True, slots=True)
class _Settled:
    """What a member will be answered from is settled."""

    member: _Member


class _Poll:
    """The vote of one ask: with the evaluator, or from its first failure on without."""

    def __init__(
        self, votes: Votes, ensemble: EnsembleAsk, names: Sequence[str], clock: Clock, plan: Plan
    ) -> None:
        self._ensemble = ensemble
        self._names = names
        self._clock = clock
        self._wait_s = plan.report_wait_s
        self._answers: dict[int, str | None] = {}
        self._ballot: Ballot = votes.open(
            ensemble.ask.question, ensemble.voting, timeout_s=max(clock.left_s, 0.001)
        )
        self._local = False
        self._standing = Standing(None, decided=False)

    async def cast(self, member: _Member) -> list[Event]:
        """Counts a member; the vote so far after an answer, and what degraded."""
        text = member.answered.answer.text if member.answered is not None else None
        self._answers[member.place] = text
        events: list[Event] = []
        if not self._local:
            outcome = await self._counted(member.place, text)
            if isinstance(outcome, Setback):
                events.append(outcome.degraded)
                self.close()
                self._ballot, self._local = LocalBallot(self._ensemble.voting), True
                for place, answer in self._answers.items():
                    self._standing = await self._ballot.cast(place, answer)
            else:
                self._standing = outcome
        else:
            self._standing = await self._ballot.cast(member.place, text)
        if text is not None:
            events.append(self._voted(final=False))
        return events

    def final(self) -> Voted:
        """The vote with what arrived."""
        return self._voted(final=True)

    def close(self) -> None:
        """Ends the vote."""
        self._ballot.close()

    async def _counted(self, place: int, text: str | None) -> Standing | Setback:
        # Who is late is counted as missing when only the time to close is left.
        try:
            async with asyncio.timeout(self._clock.closing_budget(cap_s=self._wait_s)):
                return await self._ballot.cast(place, text)
        except (TimeoutError, DeadlineExceeded):
            late = MeshError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "BUDGET_EXCEEDED", "the evaluator did not count in time"
            )
            return setback_of(Step.VOTE, late)
        except MeshError as error:
            return setback_of(Step.VOTE, error)

    def _voted(self, *, final: bool) -> Voted:
        winner = self._standing.winner
        missing = tuple(name for place, name in enumerate(self._names) if self._answers.get(place) is None)
        return Voted(
            answer="" if winner is None else self._answers[winner] or "",
            member="" if winner is None else self._names[winner],
            num_answers=len(self._names) - len(missing),
            missing=missing,
            may_change=not final and not self._standing.decided,
            final=final,
        )


_NOTHING = Pool((), np.empty(0), np.empty((1, 0), dtype=np.int64), None, "", "")
_NO_CONTEXT = Contexts(np.empty((1, 0), dtype=np.int64), None)


def _vote(ensemble: EnsembleAsk, members: Sequence[_Member], voted: Voted, clock: Clock) -> Observation:
    """What was said in the end, and by whose agreement; what was shown is in the members' observations."""
    answers = [
        replace(member.answered, samples=(member.place,)) for member in members if member.answered is not None
    ]
    winner = next((at for at, one in enumerate(answers) if one.member == voted.member), None)
    return Observation(
        replace(ensemble.ask, id=f"{ensemble.ask.id}-vote"),
        replace(_NOTHING, retriever=ensemble.name),
        Ranked(_NO_CONTEXT, "none", ""),
        answers,
        dict(clock.stage_ms),
        observed_at_us=time.time_ns() // 1000,
        retrievers=tuple(member.name for member in members),
        vote_winner=winner,
    )


def _depths(ensemble: EnsembleAsk) -> dict[Origin, int]:
    """Passages asked of each place: as many as the member that wants most."""
    depths: dict[Origin, int] = {}
    for ask in ensemble.members:
        for place in ask.recipe.places.values() if ask.recipe is not None else ():
            where = (place.collection, place.web, place.retriever)
            depths[where] = max(depths.get(where, 0), place.depth)
    return depths


def _part(pool: Pool, places: Sequence[int]) -> Pool:
    """Some passages of a pool."""
    return replace(
        pool,
        passages=[pool.passages[place] for place in places],
        scores=pool.scores[list(places)],
        rankings=np.arange(len(places), dtype=np.int64)[None, :],
    )


def _as_told(member: _Member, told: Mapping[str, int]) -> Contexts:
    """What a member was shown, as indices into all that was retrieved instead of into its own pool."""
    contexts, passages = member.ranked.contexts, member.pool.passages
    rows = [[told[passages[index].id] for index in row] for row in contexts.rows.tolist()]
    return replace(contexts, rows=np.array(rows, dtype=np.int64).reshape(contexts.rows.shape))


def _together(members: Sequence[_Member]) -> tuple[Pool, list[list[int]]]:
    """One pool of all members, each passage once, and what each member was shown of it."""
    index: dict[str, int] = {}
    passages: list[Passage] = []
    for member in members:
        for passage in member.pool.passages:
            if passage.id not in index:
                index[passage.id] = len(passages)
                passages.append(passage)
    pool = replace(_NOTHING, passages=passages, scores=np.zeros(len(passages)))
    return pool, [[index[passage.id] for passage in member.passages] for member in members]
