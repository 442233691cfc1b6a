"""Conversations of the SDK: every option reaches its field, streams are opened, cancelled and opened again."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from evenmesh import AsyncClient, AsyncConversation, Client, Conversation
from evenmesh.codec import conversation as codec
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from evenmesh.types.conversation import (
    CitedEntity,
    ConversationReport,
    GroupFairness,
    GroupTarget,
    LookedFor,
    TurnResult,
    group_target,
)
from evenmesh.types.events import Delta, Done
from evenmesh.types.passage import Passage
from evenmesh.wire.errors import FailedPrecondition, InvalidField, MeshError
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle

TARGET = GroupTarget("provider", ("P", "Q"), (0.25, 0.75), "rnod")


def test_every_option_reaches_its_field() -> None:
    message = codec.options_message(
        {
            "targets": [TARGET],
            "history": "rewrite",
            "history_turns": 3,
            "template": "t",
            "patience": 100,
            "relevance_weight": 0.0,
            "cumulative": True,
            "uniform_turns": True,
            "entity_attribute": "document",
        }
    )
    kinds = evaluator_pb.EvaluateConversationRequest
    assert (message.history, message.history_turns) == (pb.ConversationOptions.HISTORY_REWRITE, 3)
    assert (message.template, message.entity_attribute, message.patience) == ("t", "document", 100)
    assert message.HasField("relevance_weight")
    assert (message.method, message.irrelevant_turns) == (
        kinds.METHOD_CUMULATIVE,
        kinds.IRRELEVANT_TURNS_UNIFORM,
    )
    (target,) = message.targets
    assert (target.attribute, list(target.groups), list(target.shares)) == (
        "provider",
        ["P", "Q"],
        [0.25, 0.75],
    )
    assert target.divergence == evaluator_pb.AttributeTarget.DIVERGENCE_RNOD


def test_a_value_that_does_not_fit_its_field_names_it() -> None:
    with pytest.raises(InvalidField) as caught:
        codec.options_message({"history": "all"})  # type: ignore[typeddict-item]
    assert caught.value.field == "options.history"
    with pytest.raises(TypeError, match="no option moon"):
        codec.options_message({"moon": 1})  # type: ignore[typeddict-unknown-key]


def test_reports_are_read() -> None:
    message = pb.ConverseResponse()
    report = message.report
    report.so_far.relevance, report.so_far.group_fairness, report.so_far.combined = 0.5, 0.25, 0.375
    found = report.so_far.attributes["provider"]
    found.group_fairness = 0.25
    found.similarity.extend([math.nan, 0.25])
    found.achieved.add()
    found.achieved.add(shares=[1.0, 0.0])
    entity = report.entities.add(
        passage_id="p", entity="evenmesh://c/p", level=2, word_count=9, repeated=True
    )
    entity.membership["provider"].shares.extend([1.0, 0.0])
    report.num_words, report.num_ungrouped, report.turn_relevance = 12, 1, 0.0
    assert codec.event(message) == ConversationReport(
        relevance=0.5,
        group_fairness=0.25,
        combined=0.375,
        turn_relevance=0.0,
        turn_group_fairness=None,
        by_attribute={"provider": GroupFairness(0.25, (None, 0.25), (None, (1.0, 0.0)))},
        entities=(CitedEntity("p", "evenmesh://c/p", 2, True, 9, {"provider": (1.0, 0.0)}),),
        num_ungrouped=1,
        num_words=12,
    )
    assert codec.event(pb.ConverseResponse(looked_for="x")) == LookedFor("x")
    assert codec.event(pb.ConverseResponse()) is None


def test_a_target_of_a_collections_own_groups() -> None:
    values = ["b", "a", "a; b", "", "a"]
    assert group_target(values, "p") == GroupTarget("p", ("a", "b"), None, "jsd")
    # a: 1 + 1 / 2 + 1, b: 1 + 1 / 2, of 4.
    assert group_target(values, "p", own=True) == GroupTarget("p", ("a", "b"), (2.5 / 4, 1.5 / 4), "jsd")
    assert group_target(["a", "a"], "p") is None


@dataclass
class Orchestrator:
    """Answers turns letter by letter from a script, and notes what it was sent."""

    requests: list[pb.ConverseRequest] = field(default_factory=list)
    streams: int = 0
    busy: int = 0
    ends_after: int = 1_000
    interrupts: int = 0

    def turns(self, request: pb.ConverseRequest, number: int) -> Iterator[pb.ConverseResponse]:
        name = request.conversation_id or "c1"
        if request.ask.question == "wrong":
            error = item_error(InvalidField("ask.k", "must be in [1, 100]"))
            yield pb.ConverseResponse(conversation_id=name, turn=number, failed=pb.TurnFailed(error=error))
            return
        for letter in "abc":
            made = pb.ConverseResponse(conversation_id=name, turn=number)
            made.event.delta.text = letter
            yield made
        made = pb.ConverseResponse(conversation_id=name, turn=number, transcript=f"turns {number}\n")
        made.event.done.ask_id = "a"
        yield made


class Stub:
    """A stub whose calls are iterators in this process, as the sync client's are."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator

    def Converse(self, requests: Iterator[pb.ConverseRequest], timeout: float) -> "Call":  # noqa: N802
        self._orchestrator.streams += 1
        return Call(self._orchestrator, requests)


class Refused(grpc.RpcError):
    """What a refused call raises."""


class Call:
    def __init__(self, orchestrator: Orchestrator, requests: Iterator[pb.ConverseRequest]) -> None:
        self._orchestrator = orchestrator
        self._events = self._run(orchestrator, requests)

    def __next__(self) -> pb.ConverseResponse:
        if self._orchestrator.interrupts:
            self._orchestrator.interrupts -= 1
            raise KeyboardInterrupt
        return next(self._events)

    def cancel(self) -> None:
        self._events.close()

    @staticmethod
    def _run(orchestrator: Orchestrator, requests: Iterator[pb.ConverseRequest]) -> "Any":
        number = 0
        for place, request in enumerate(requests):
            orchestrator.requests.append(request)
            if place >= orchestrator.ends_after:
                return
            if orchestrator.busy:
                orchestrator.busy -= 1
                raise Refused
            if request.cancel:
                continue
            number += 1
            yield from orchestrator.turns(request, number)


def begin(orchestrator: Orchestrator, conversation_id: str = "", **options: Any) -> Conversation:
    return Conversation(
        Stub(orchestrator),
        lambda: None,
        lambda _: FailedPrecondition("CONVERSATION_BUSY", "busy"),
        options or {"collection": "c", "k": 2},
        {"targets": [TARGET]},
        timeout=5,
        conversation_id=conversation_id,
    )


def test_options_are_sent_once_and_labels_with_each_turn() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        first = conversation.answer("One?", useful=["p1"])
        second = conversation.answer("Two?", references=["r"], timeout=0.5)
        conversation.set(history="none")
        conversation.answer("Three?")
    assert isinstance(first, TurnResult)
    assert (first.turn, first.transcript, first.conversation_id) == (1, "turns 1\n", "c1")
    assert (second.turn, conversation.id) == (2, "c1")
    one, two, three = orchestrator.requests
    assert (one.ask.collection, one.ask.k, list(one.ask.labels.useful_passage_ids)) == ("c", 2, ["p1"])
    assert (two.ask.collection, list(two.ask.labels.references)) == ("", ["r"])
    assert (one.timeout_ms, two.timeout_ms) == (5000, 500)
    assert [request.HasField("options") for request in orchestrator.requests] == [True, False, True]
    assert three.options.history == pb.ConversationOptions.HISTORY_NONE
    assert list(three.options.targets[0].groups) == ["P", "Q"]
    assert [request.conversation_id for request in orchestrator.requests] == ["", "c1", "c1"]


def test_a_turn_that_fails_raises_and_the_next_turn_works() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        with pytest.raises(MeshError) as caught:
            conversation.answer("wrong")
        assert (caught.value.field, conversation.turn) == ("ask.k", 0)
        # The options of the failed turn are sent again.
        conversation.answer("One?")
    assert [request.ask.collection for request in orchestrator.requests] == ["c", "c"]
    assert orchestrator.streams == 1


def test_leaving_the_loop_cancels_the_turn_and_only_it() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        events = conversation.ask("One?")
        assert next(events) == Delta("a")
        events.close()  # type: ignore[attr-defined]
        assert orchestrator.streams == 1
        kinds = [type(event) for event in conversation.ask("Two?")]
    assert kinds == [Delta, Delta, Delta, Done]
    # This orchestrator had ended the turn before it read the cancellation: it counts, and is not read twice.
    assert conversation.turn == 2


def test_a_stream_that_ended_is_opened_again_and_waited_for_while_it_is_busy() -> None:
    orchestrator = Orchestrator(ends_after=1)
    with begin(orchestrator) as conversation:
        conversation.answer("One?")
        conversation.answer("Two?")
        assert orchestrator.streams == 2
        orchestrator.busy = 2
        conversation.answer("Three?")
    # The second one has ended too; two more find the conversation busy.
    assert orchestrator.streams == 2 + 3
    assert orchestrator.requests[-1].conversation_id == "c1"


def test_ctrl_c_while_waiting_ends_the_stream_and_the_conversation_continues() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        conversation.answer("One?")
        orchestrator.interrupts = 1
        with pytest.raises(KeyboardInterrupt):
            conversation.answer("Two?")
        conversation.answer("Three?")
    assert orchestrator.streams == 2
    assert orchestrator.requests[-1].conversation_id == "c1"


def test_after_an_interrupted_first_turn_the_next_begins_another_conversation() -> None:
    """The mesh keeps no conversation without a turn: its id would be refused for ever."""
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        events = conversation.ask("One?")
        assert next(events) == Delta("a")
        assert conversation.id == "c1"
        orchestrator.interrupts = 1
        with pytest.raises(KeyboardInterrupt):
            next(events)
        assert conversation.id == ""
        conversation.answer("Two?")
    one, two = orchestrator.requests
    assert (two.conversation_id, two.ask.question) == ("", "Two?")
    assert (two.ask.collection, two.options) == ("c", one.options)


def test_an_interrupted_first_turn_leaves_the_conversation_that_it_continues() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator, conversation_id="c7") as conversation:
        events = conversation.ask("One?")
        next(events)
        orchestrator.interrupts = 1
        with pytest.raises(KeyboardInterrupt):
            next(events)
        conversation.answer("Two?")
    assert [request.conversation_id for request in orchestrator.requests] == ["c7", "c7"]


def test_a_stream_that_ended_after_a_cancelled_first_turn_is_opened_for_another_conversation() -> None:
    orchestrator = Orchestrator(ends_after=1)
    with begin(orchestrator) as conversation:
        with pytest.raises(MeshError, match="must be in"):
            conversation.answer("wrong")
        conversation.answer("One?")
    assert orchestrator.streams == 2
    assert orchestrator.requests[-1].conversation_id == ""


def test_passages_that_can_be_read_once_are_sent_with_every_first_turn() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator, passages=iter([Passage("p1", "Oil it.")])) as conversation:
        conversation.answer("One?")
        conversation.reset()
        conversation.answer("One?")
    sent = [[one.id for one in request.ask.candidates.passages] for request in orchestrator.requests]
    assert sent == [["p1"], ["p1"]]


def test_what_is_set_during_a_turn_holds_from_the_next_on() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        for event in conversation.ask("One?"):
            if event == Delta("a"):
                conversation.set(history="none")
        conversation.answer("Two?")
        conversation.answer("Three?")
    one, two, three = orchestrator.requests
    assert one.options.history != pb.ConversationOptions.HISTORY_NONE
    assert two.options.history == pb.ConversationOptions.HISTORY_NONE
    assert not three.HasField("options")


def test_a_stream_that_ends_at_once_is_not_opened_again() -> None:
    orchestrator = Orchestrator(ends_after=0)
    with begin(orchestrator) as conversation, pytest.raises(MeshError) as caught:
        conversation.answer("One?")
    assert (caught.value.reason, orchestrator.streams) == ("CUT_OFF", 1)


def test_reset_begins_another_conversation_with_the_same_options() -> None:
    orchestrator = Orchestrator()
    with begin(orchestrator) as conversation:
        conversation.answer("One?")
        conversation.reset()
        assert (conversation.id, conversation.turn, conversation.transcript) == ("", 0, "")
        conversation.answer("One?")
    assert [request.conversation_id for request in orchestrator.requests] == ["", ""]
    assert [request.ask.collection for request in orchestrator.requests] == ["c", "c"]


class AsyncCall:
    """A call of grpc.aio over the same script."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._sent: asyncio.Queue[pb.ConverseRequest] = asyncio.Queue()
        self._events = self._run(orchestrator)
        self.cancelled = False

    async def write(self, request: pb.ConverseRequest) -> None:
        await self._sent.put(request)

    def __aiter__(self) -> AsyncIterator[pb.ConverseResponse]:
        return self._events

    def add_done_callback(self, callback: Any) -> None:
        """These calls end only when they are cancelled."""

    def cancel(self) -> None:
        self.cancelled = True

    async def _run(self, orchestrator: Orchestrator) -> AsyncIterator[pb.ConverseResponse]:
        number = 0
        while True:
            request = await self._sent.get()
            orchestrator.requests.append(request)
            if request.cancel:
                continue
            number += 1
            for event in orchestrator.turns(request, number):
                yield event


class AsyncStub:
    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self.calls: list[AsyncCall] = []

    def Converse(self, timeout: float) -> AsyncCall:  # noqa: N802
        self.calls.append(AsyncCall(self._orchestrator))
        return self.calls[-1]


def _conversation(stub: AsyncStub) -> AsyncConversation:
    return AsyncConversation(
        stub,
        lambda: None,
        lambda _: MeshError(grpc.StatusCode.UNKNOWN, "X", "x"),
        {"k": 3},
        {},
        timeout=5,
        conversation_id="",
    )


@pytest.mark.asyncio
async def test_the_async_conversation_is_the_same() -> None:
    orchestrator = Orchestrator()
    stub = AsyncStub(orchestrator)
    async with _conversation(stub) as conversation:
        first = await conversation.answer("One?")
        assert (first.turn, first.transcript) == (1, "turns 1\n")
        with pytest.raises(MeshError):
            await conversation.answer("wrong")
        events = conversation.ask("Two?")
        assert await anext(events) == Delta("a")
        await events.aclose()  # type: ignore[attr-defined]
        assert (await conversation.answer("Three?")).turn == 4
    assert len(stub.calls) == 1
    assert stub.calls[0].cancelled


@pytest.mark.asyncio
async def test_a_turn_that_was_left_early_leaves_nothing_to_the_next() -> None:
    """Unlike `for`, `async for` closes its iterator only later: the next turn is asked before."""
    orchestrator = Orchestrator()
    stub = AsyncStub(orchestrator)
    async with _conversation(stub) as conversation:
        async for event in conversation.ask("One?"):
            assert event == Delta("a")
            break
        two = [type(event) async for event in conversation.ask("Two?")]
        assert two == [Delta, Delta, Delta, Done]
        kept = conversation.ask("Three?")
        assert await anext(kept) == Delta("a")
        four = [type(event) async for event in conversation.ask("Four?")]
        assert four == [Delta, Delta, Delta, Done]
        with pytest.raises(MeshError, match="another turn began"):
            await anext(kept)
        await conversation.answer("Five?")
    asked = [one.ask.question for one in orchestrator.requests if not one.cancel]
    assert asked == ["One?", "Two?", "Three?", "Four?", "Five?"]
    assert [one.cancelled for one in stub.calls] == [True] * 3


class Slow(pb_grpc.OrchestratorServiceServicer):
    """Takes its time for each turn."""

    async def Converse(  # noqa: N802 - the contract's name
        self, requests: AsyncIterator[pb.ConverseRequest], context: Any
    ) -> AsyncIterator[pb.ConverseResponse]:
        number = 0
        async for _ in requests:
            number += 1
            await asyncio.sleep(0.3)
            made = pb.ConverseResponse(conversation_id="c", turn=number)
            made.event.done.ask_id = "a"
            yield made


async def test_a_conversation_outlasts_the_deadline_of_calls_that_bring_none() -> None:
    name = pb.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
    registration = Registration(pb_grpc.add_OrchestratorServiceServicer_to_server, Slow(), name)
    settings = ServiceSettings(default_deadline_s=0.4, grace_s=0)
    async with (
        MeshServer("slow", settings, Idle(registration), telemetry=Telemetry.disabled()) as server,
        AsyncClient(server.address, timeout=30) as client,
    ):
        async with client.converse() as conversation:
            assert [(await conversation.answer("q")).turn for _ in range(3)] == [1, 2, 3]
        with Client(server.address, timeout=30) as sync, sync.converse() as conversation:
            turns = [(await asyncio.to_thread(conversation.answer, "q")).turn for _ in range(3)]
            assert turns == [1, 2, 3]
