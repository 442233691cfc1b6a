"""A turn of a conversation: what is looked for, the ask, and how relevant and fair it all is by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from meshkit.deadline import Deadline
from meshkit.errors import MeshError
from orchestrator.budgets import Clock, Plan, Setback, attempt
from orchestrator.conversations import history
from orchestrator.conversations.options import History
from orchestrator.conversations.shelf import Conversation, Standing, Told
from orchestrator.conversations.sources import cited
from orchestrator.domain import Answered, Ask, Degraded, Event, Finished, Pool, Retrieved
from orchestrator.pipeline import Pipeline
from orchestrator.policy import Step
from orchestrator.ports import Generator


@dataclass(frozen=True, slots=True)
class LookedFor:
    """What passages are looked for with, where that is not the question itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The conversation so far: as it stands, and what was measured of it."""

    standing: Standing
    fairness: Fairness


@dataclass(frozen=True, slots=True)
class Kept:
    """The end of a turn: what its conversation takes on, and how it stands with it."""

    finished: Finished
    told: Told
    standing: Standing
    relevance: float | None
    """R of the conversation so far; None where it is not known."""


TurnEvent: TypeAlias = LookedFor | Event | Measured | Kept


class Fairness(Protocol):
    """What the evaluator says of a conversation; handed on as it came."""

    @property
    def relevance(self) -> float: ...


class Measures(Protocol):
    """Measures conversations, and says it so that observations can carry it."""

    async def evaluate(self, conversation: Conversation, standing: Standing, *, timeout_s: float) -> Fairness:
        """R and GF of a conversation.

        Raises:
            MeshError: the evaluator does not say.
        """

    def observed(self, conversation: Conversation, standing: Standing) -> object:
        """The conversation as an observation carries it."""


class Talk:
    """Takes turns.

    Args:
        pipeline: answers them.
        generator: rewrites questions.
        measures: says how relevant and fair a conversation is.
        plan: budgets.
    """

    def __init__(self, *, pipeline: Pipeline, generator: Generator, measures: Measures, plan: Plan) -> None:
        self._pipeline = pipeline
        self._generator = generator
        self._measures = measures
        self._plan = plan

    async def turn(
        self, conversation: Conversation, ask: Ask, deadline: Deadline
    ) -> AsyncGenerator[TurnEvent, None]:
        """Takes one turn; ``Kept`` last, and nothing of it is in the conversation before somebody keeps it.

        Close it early to cancel everything.

        Raises:
            MeshError: a step failed that the policy has no substitute for.
        """
        options = conversation.options
        clock = Clock(deadline, self._plan)
        looked_for, degraded = await self._looked_for(conversation, ask, clock)
        if degraded is not None:
            yield degraded
        if looked_for != ask.question:
            yield LookedFor(looked_for)
        told = _Listener(ask)
        ask = replace(
            ask,
            looked_for="" if looked_for == ask.question else looked_for,
            turns=tuple(conversation.exchanges) if options.template else (),
            template=options.template,
            judge=None,
        )
        if options.targets:
            ask = replace(ask, judge=lambda found, answers: self._judged(conversation, ask, found, answers))
        async with aclosing(self._pipeline.ask(ask, deadline)) as events:
            async for event in events:
                told.hear(event)
                if not isinstance(event, Finished):
                    yield event
        turn, finished = told.told(), told.finished
        standing = conversation.standing(turn)
        relevance: float | None = None
        if options.targets:
            outcome = await self._measured(conversation, standing, clock)
            if isinstance(outcome, Setback):
                yield outcome.degraded
            else:
                relevance = outcome.relevance
                yield Measured(standing, outcome)
        yield Kept(finished, turn, standing, relevance)

    async def _looked_for(
        self, conversation: Conversation, ask: Ask, clock: Clock
    ) -> tuple[str, Degraded | None]:
        options = conversation.options
        earlier = conversation.exchanges[-options.history_turns :]
        if not earlier or options.history is History.NONE or not ask.augmentation.reads_passages:
            return ask.question, None
        words = history.words(ask.question, [turn.question for turn in earlier])
        if options.history is History.WORDS:
            return words, None
        prompt = history.rewriting(ask, earlier)

        async def rewrite(budget_s: float) -> str:
            (outcome,) = await self._generator.batch([prompt], timeout_s=budget_s)
            if isinstance(outcome, MeshError):
                raise outcome
            return " ".join(outcome.text.split())

        outcome = await attempt(clock, Step.REWRITE, rewrite)
        if isinstance(outcome, Setback):
            return words, outcome.degraded
        return outcome or words, None

    async def _measured(
        self, conversation: Conversation, standing: Standing, clock: Clock
    ) -> Fairness | Setback:
        return await attempt(
            clock,
            Step.JUDGE,
            lambda budget: self._measures.evaluate(conversation, standing, timeout_s=budget),
        )

    def _judged(
        self, conversation: Conversation, ask: Ask, found: Pool, answers: Sequence[Answered]
    ) -> object:
        listener = _Listener(ask)
        listener.hear(Retrieved(found))
        for answered in answers[:1]:
            listener.hear(answered)
        return self._measures.observed(conversation, conversation.standing(listener.told()))


class _Listener:
    """Gathers from the events of an ask what its conversation is told of it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._pool: Pool | None = None
        self._answer: Answered | None = None
        self._finished: Finished | None = None

    def hear(self, event: Event) -> None:
        match event:
            case Retrieved(pool):
                self._pool = pool
            case Answered() if self._answer is None:
                self._answer = event
            case Finished():
                self._finished = event
            case _:
                pass

    @property
    def finished(self) -> Finished:
        if self._finished is None:
            raise asyncio.InvalidStateError("an ask ended without its end")
        return self._finished

    def told(self) -> Told:
        if self._answer is None:
            return Told(self._ask.question, "")
        passages = {} if self._pool is None else {one.id: one for one in self._pool.passages}
        found = cited(self._ask, self._answer.citations, passages)
        return Told(self._ask.question, self._answer.answer.text, found)
