"""A turn of a conversation: its search text, its ask, and the relevance and fairness so far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from evenmesh.evaluator.v1.evaluator_service_pb2 import EvaluateConversationResponse, ObservedConversation
from evenmesh.generator.v1.generator_service_pb2 import Turn
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_core.earlier_words import words
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, PipelineConfig, attempt
from evenmesh_orchestrator.asks.exposure import offload
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.asks.pipeline import Pipeline
from evenmesh_orchestrator.conversations.conversation import Conversation, ConversationState, TurnRecord
from evenmesh_orchestrator.conversations.evaluation import ConversationEvaluator, evaluation_request
from evenmesh_orchestrator.conversations.rewriting import rewrite_prompt
from evenmesh_orchestrator.conversations.sources import cited
from evenmesh_orchestrator.domain import Answered, Ask, Degraded, Event, Finished, Pool, Retrieved
from evenmesh_orchestrator.ports import Generator

_PLACES_PER_MEMBERSHIP: Final = 50
"""How much longer the share of a source in a group takes than a place of a ranking."""


@dataclass(frozen=True, slots=True)
class SearchText:
    """Event: the text to retrieve passages for, where it differs from the question."""

    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Event: the state of the conversation, and the evaluator's measurement of it."""

    state: ConversationState
    fairness: EvaluateConversationResponse


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """Event: the turn is over. ``relevance`` is R of the conversation so far; None where it is unknown."""

    finished: Finished
    record: TurnRecord
    state: ConversationState
    relevance: float | None


TurnEvent: TypeAlias = SearchText | Event | Measured | TurnEnd
"""An event of a turn."""


class TurnHandler:
    """Runs the turns of conversations.

    Args:
        pipeline: answers them.
        generator: rewrites questions.
        evaluator: measures conversations.
        config: budgets.
        pool: threads that read long conversations.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        generator: Generator,
        evaluator: ConversationEvaluator,
        config: PipelineConfig,
        pool: TenantPool,
    ) -> None:
        self._pipeline = pipeline
        self._generator = generator
        self._evaluator = evaluator
        self._config = config
        self._pool = pool

    async def run(
        self, conversation: Conversation, ask: Ask, deadline: Deadline
    ) -> AsyncGenerator[TurnEvent, None]:
        """Run one turn; yield ``TurnEnd`` last. The caller adds its record to the conversation.

        Close it early to cancel all work.

        Raises:
            MeshError: a step failed, and the policy has no substitute.
        """
        options = conversation.options
        clock = Clock(deadline, self._config)
        text, degraded = await self._search_text(conversation, ask, clock)
        if degraded is not None:
            yield degraded
        if text != ask.question:
            yield SearchText(text)
        ask = replace(
            ask,
            search="" if text == ask.question else text,
            adds_words=options.history == pb.ConversationOptions.HISTORY_WORDS or degraded is not None,
            turns=_shown(conversation, ask),
            template=options.template or ask.template,
            conversation=None,
        )

        state: ConversationState | None = None

        async def observed(pool: Pool, answers: Sequence[Answered]) -> ObservedConversation:
            nonlocal state
            state = await self._state(conversation, _record(ask, pool, answers[:1]))
            judged = evaluation_request(conversation, state)
            return ObservedConversation(conversation_id=conversation.id, judged=judged)

        pool: Pool | None = None
        answers: list[Answered] = []
        finished: Finished | None = None
        observable = replace(ask, conversation=observed) if options.targets else ask
        async with aclosing(self._pipeline.ask(observable, deadline)) as events:
            async for event in events:
                match event:
                    case Retrieved():
                        pool = event.pool
                    case Answered():
                        answers.append(event)
                if isinstance(event, Finished):
                    finished = event
                else:
                    yield event
        if finished is None:
            raise asyncio.InvalidStateError("an ask ended without its end")
        record = _record(ask, pool, answers[:1])
        if state is None:
            state = await self._state(conversation, record)
        relevance: float | None = None
        if options.targets:
            request = evaluation_request(conversation, state)
            outcome = await attempt(
                clock,
                Step.MEASURE_CONVERSATION,
                lambda budget: self._evaluator.evaluate(request, timeout_s=budget),
            )
            if isinstance(outcome, HandledFailure):
                yield outcome.degraded
            else:
                relevance = outcome.relevance
                yield Measured(state, outcome)
        yield TurnEnd(finished, record, state, relevance)

    async def _state(self, conversation: Conversation, record: TurnRecord) -> ConversationState:
        size = conversation.memberships(len(record.cited)) * _PLACES_PER_MEMBERSHIP + conversation.num_words
        return await offload(self._pool, size, lambda _: conversation.state(record))

    async def _search_text(
        self, conversation: Conversation, ask: Ask, clock: Clock
    ) -> tuple[str, Degraded | None]:
        options = conversation.options
        earlier = conversation.exchanges[-options.history_turns :]
        if not earlier or options.history == pb.ConversationOptions.HISTORY_NONE or not ask.reads_passages:
            return ask.question, None
        extended = words(ask.question, [turn.question for turn in earlier])
        if options.history == pb.ConversationOptions.HISTORY_WORDS:
            return extended, None
        prompt = rewrite_prompt(ask, earlier)

        async def rewrite(budget_s: float) -> str:
            (outcome,) = await self._generator.batch([prompt], timeout_s=budget_s)
            if isinstance(outcome, MeshError):
                raise outcome
            return " ".join(outcome.text.split())

        outcome = await attempt(clock, Step.REWRITE, rewrite)
        if isinstance(outcome, HandledFailure):
            return extended, outcome.degraded
        return outcome or extended, None


def _shown(conversation: Conversation, ask: Ask) -> Sequence[Turn]:
    """Return the earlier turns for the model: all with the template of the conversation, else the newest.

    An ask may name a template that does not show turns.
    """
    options = conversation.options
    if options.template:
        return conversation.exchanges
    if ask.template or options.history == pb.ConversationOptions.HISTORY_NONE:
        return ()
    return conversation.exchanges[-options.history_turns :]


def _record(ask: Ask, pool: Pool | None, answers: Sequence[Answered]) -> TurnRecord:
    """Return the record of a turn from the first of its answers."""
    if not answers:
        return TurnRecord(ask.question, "")
    passages = {} if pool is None else {one.id: one for one in pool.passages}
    found = cited(ask, answers[0].citations, passages)
    return TurnRecord(ask.question, answers[0].answer.text, found)
