"""`Converse`: the orchestrator as a process, scripted upstreams, a real evaluator that measures."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import NotFound, from_rpc_error
from evenmesh_core.group_fairness import Attribute, conversation, jsd, parse_transcripts
from tests.integration.test_orchestrator_service import Mesh, _mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")

TARGETS = {"targets": [{"attribute": "provider", "groups": ["P", "Q"]}]}
LIMITS = {"CONVERSATION_TURNS": "4", "CONVERSATION_WORDS": "200", "CONVERSATION_LIFETIME_S": "60"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """A mesh that the tests of this file share."""
    home = tmp_path_factory.mktemp("home")
    (home / "limits.toml").write_text("")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("EVENMESH_LIMITS", str(home / "limits.toml"))
        async with _mesh(home, **LIMITS) as mesh:
            yield mesh


@pytest.fixture
def mesh(shared: Mesh) -> Mesh:
    """The shared mesh with everything working, nothing asked yet, and a run of the test's own."""
    for upstream in (shared.retriever, shared.reranker, shared.generator):
        upstream.reset()
    shared.run_id = uuid.uuid4().hex
    return shared


class Stream:
    """One stream of turns."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.call = mesh.stub.Converse(timeout=90)

    async def send(self, question: str = "", **request: Any) -> None:
        ask = {"question": question, **request.pop("ask", {})}
        await self.call.write(pb.ConverseRequest(ask=pb.AskRequest(**ask), **request))

    async def turn(self) -> list[pb.ConverseResponse]:
        """The events of one turn."""
        events: list[pb.ConverseResponse] = []
        while True:
            event: Any = await self.call.read()
            assert event is not grpc.aio.EOF, "the stream ended in a turn"
            events.append(event)
            if event.HasField("failed") or event.event.HasField("done"):
                return events

    async def take(self, question: str, **request: Any) -> list[pb.ConverseResponse]:
        await self.send(question, **request)
        return await self.turn()

    def first(self, **more: Any) -> dict[str, Any]:
        """How the first turn is asked: the first passage is the context, and is cited."""
        return {"ask": {"run_id": self._mesh.run_id, "reranker": "none", "k": 1}, **more}


@asynccontextmanager
async def talking(mesh: Mesh) -> AsyncIterator[Stream]:
    stream = Stream(mesh)
    try:
        yield stream
    finally:
        stream.call.cancel()


def report_of(events: Sequence[pb.ConverseResponse]) -> pb.ConversationReport:
    (found,) = [event.report for event in events if event.HasField("report")]
    return found


def answer_of(events: Sequence[pb.ConverseResponse]) -> str:
    (found,) = [event.event.answer.answer.text for event in events if event.event.HasField("answer")]
    return found


def failure_of(events: Sequence[pb.ConverseResponse]) -> tuple[str, str]:
    return events[-1].failed.error.reason, events[-1].failed.error.field


def passages(*names: str) -> dict[str, Any]:
    """Candidates, the first of which is the context; ``river0`` is of the provider P."""
    made = [
        common_pb2.Passage(
            id=name,
            title=f"On {name}",
            text=f"It is about {name}",
            attributes={"provider": "PQ"[int(name[-1]) % 2]},
        )
        for name in names
    ]
    return {"passages": made}


async def test_three_turns_are_measured_as_by_hand(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        first = await stream.take("Which river?", **stream.first(options=TARGETS))
        assert [event.turn for event in first] == [1] * len(first)
        assert answer_of(first) == "river0."
        one = report_of(first)
        # "Which river?" 2 words, "river0." 1, "evenmesh://demo/p0" 1: the address is word 4.
        assert [entity.word_count for entity in one.entities] == [4]
        assert one.so_far.relevance == pytest.approx(2 / 1251 * (1 - 3 / 1250))
        # All of P where half of P and half of Q are wanted: 1 - (log2(1 / .75) + (log2(.5 / .75) + log2(2)) / 2) / 2
        assert one.so_far.group_fairness == pytest.approx(1 - jsd([1, 0], [0.5, 0.5]))
        assert one.turn_group_fairness == pytest.approx(one.so_far.group_fairness, rel=1e-12)
        assert one.turn_relevance == pytest.approx(one.so_far.relevance, rel=1e-12)

        # The same passage again is not relevant again.
        second = report_of(await stream.take("And now?"))
        assert [entity.repeated for entity in second.entities] == [True]
        assert second.so_far.relevance == one.so_far.relevance
        assert second.turn_relevance == 0
        assert not second.HasField("turn_group_fairness")

        third = await stream.take(
            "And there?", ask={"candidates": passages("river1"), "k": 1, "reranker": "none"}
        )
        last = report_of(third)
        # 4 words, 4 of the second turn (2 + 1 + 1), "And there?" 2, "river1" 1, "[1] On river1: evenmesh…" 4.
        assert [entity.word_count for entity in last.entities] == [4 + 4 + 2 + 1 + 4]
        assert last.turn_relevance == pytest.approx(2 / 1251 * (1 - 14 / 1250))
        # Two turns count, one of each group: the mean of two equal similarities.
        assert last.so_far.group_fairness == pytest.approx(1 - jsd([1, 0], [0.5, 0.5]))

        text = third[-1].transcript
        (read,) = parse_transcripts(f"##### topic\n{text}")
        again = conversation(read.nuggets(), {"provider": Attribute([0.5, 0.5], "jsd")})
        assert again.relevance == pytest.approx(last.so_far.relevance)
        assert again.group_fairness == pytest.approx(last.so_far.group_fairness)
    run = await mesh.observed(3)
    assert run.conversation_relevance.count == 1
    assert run.conversation_relevance.mean == pytest.approx(last.so_far.relevance)


async def test_a_model_knows_of_earlier_turns(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        await stream.take("Where does the Danube rise?", **stream.first())
        events = await stream.take(
            "And where does it end?", options={"template": "rankrag-answer-conversation"}
        )
        assert events[0].looked_for == "And where does it end? Danube rise"
        assert mesh.retriever.asked[-1].query == "And where does it end? Danube rise"
        assert mesh.generator.asked[-1].question == "And where does it end?"
        assert mesh.generator.asked[-1].template == "rankrag-answer-conversation"
        assert [(turn.question, turn.answer) for turn in mesh.generator.asked[-1].turns] == [
            ("Where does the Danube rise?", "river0.")
        ]
        alone = await stream.take("And then?", options={"history": pb.ConversationOptions.HISTORY_NONE})
        assert not alone[0].looked_for
        assert mesh.retriever.asked[-1].query == "And then?"
        assert not mesh.generator.asked[-1].turns
        assert not mesh.generator.asked[-1].contextual_question
        assert not mesh.generator.asked[-1].template
        words = await stream.take("And then?", options={"history_turns": 2})
        assert mesh.generator.asked[-1].question == "And then?"
        assert mesh.generator.asked[-1].contextual_question == words[0].looked_for
        assert words[0].looked_for == "And then? end"
        assert [turn.question for turn in mesh.generator.asked[-1].turns] == [
            "And where does it end?",
            "And then?",
        ]


async def test_the_prompt_of_an_ask_is_that_of_its_turns(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        first = stream.first()
        await stream.take("Where does the Danube rise?", ask={**first["ask"], "template": "eor-qa"})
        await stream.take("And where does it end?")
        assert mesh.generator.asked[-1].template == "eor-qa"
        assert not mesh.generator.asked[-1].turns  # which not every template shows
        await stream.take("And then?", options={"template": "rankrag-answer-conversation"})
        assert mesh.generator.asked[-1].template == "rankrag-answer-conversation"
        assert len(mesh.generator.asked[-1].turns) == 2


async def test_a_question_is_rewritten_by_the_model_or_by_words(mesh: Mesh) -> None:
    rewrite = {"history": pb.ConversationOptions.HISTORY_REWRITE}
    async with talking(mesh) as stream:
        await stream.take("Where does the Danube rise?", **stream.first(options=rewrite))
        events = await stream.take("And end?")
        assert events[0].looked_for == "memory"  # what the scripted model says without passages
        assert not mesh.generator.asked[-1].contextual_question  # which is for models that cannot rewrite
        (asked,) = [one for one in mesh.generator.asked if isinstance(one, generator_pb.GenerateBatchRequest)]
        assert "Last question: And end?" in asked.requests[0].question
        assert "Question: Where does the Danube rise?\nAnswer: river0." in asked.requests[0].question

        mesh.retriever.error = NotFound("collection", "none such")
        failed = await stream.take("And then?")
        assert failure_of(failed) == ("NOT_FOUND", "collection")


async def test_errors_of_a_turn_do_not_end_the_conversation(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        first = await stream.take("Which river?", **stream.first(options=TARGETS))
        name = first[0].conversation_id
        for request, expected in [
            ({"question": " "}, ("INVALID_FIELD", "ask.question")),
            ({"question": "x", "conversation_id": "another"}, ("INVALID_FIELD", "conversation_id")),
            ({"question": "x", "timeout_ms": 0}, ("INVALID_FIELD", "timeout_ms")),
            ({"question": "x", "ask": {"ensemble": {"name": "hub"}}}, ("INVALID_FIELD", "ask.ensemble")),
            ({"question": "x", "ask": {"k": 1000}}, ("INVALID_FIELD", "ask.k")),
            (
                {"question": "x", "options": {"targets": [{"attribute": "provider", "groups": ["P"]}]}},
                ("INVALID_FIELD", "options.targets[0].groups"),
            ),
        ]:
            assert failure_of(await stream.take(**request)) == expected
        mesh.generator.delay_s = 5
        assert failure_of(await stream.take("Which?", timeout_ms=300))[0] == "BUDGET_EXCEEDED"
        mesh.generator.delay_s = 0
        second = await stream.take("And now?")
        assert (second[-1].turn, second[-1].conversation_id) == (2, name)


async def test_a_turn_is_cancelled_and_the_next_one_taken(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        await stream.take("Which river?", **stream.first())
        mesh.generator.letter_delay_s = 60.0
        await stream.send("And then?")
        while True:
            event: Any = await stream.call.read()
            if event.event.HasField("delta"):
                break
        await stream.call.write(pb.ConverseRequest(cancel=True))
        assert failure_of(await stream.turn()) == ("TURN_CANCELLED", "")
        mesh.generator.letter_delay_s = 0.0
        after = await stream.take("And now?")
        assert after[-1].turn == 2
        assert "And then?" not in after[-1].transcript
        while not mesh.generator.cancelled:
            await asyncio.sleep(0.01)


async def test_two_conversations_at_once_do_not_mix(mesh: Mesh) -> None:
    async with talking(mesh) as one, talking(mesh) as other:
        for stream, word in ((one, "Danube"), (other, "Rhine")):
            await stream.send(f"Where is the {word}?", **stream.first())
        first = await asyncio.gather(one.turn(), other.turn())
        for stream in (one, other):
            await stream.send("And its end?")
        events = await asyncio.gather(one.turn(), other.turn())
        assert [events[0].looked_for for events in events] == ["And its end? Danube", "And its end? Rhine"]
        assert first[0][0].conversation_id != first[1][0].conversation_id
        assert "Rhine" not in events[0][-1].transcript


async def test_a_conversation_goes_on_in_another_stream_and_is_had_by_one(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        first = await stream.take("Where is the Danube?", **stream.first())
        name = first[0].conversation_id
        async with talking(mesh) as thief:
            await thief.send("Mine?", conversation_id=name)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await thief.turn()
            assert from_rpc_error(caught.value).reason == "CONVERSATION_BUSY"
        await stream.call.done_writing()
        assert await stream.call.read() is grpc.aio.EOF
    async with talking(mesh) as stream:
        second = await stream.take("And its end?", conversation_id=name)
        assert (second[-1].turn, second[0].looked_for) == (2, "And its end? Danube")
    async with talking(mesh) as stream:
        await stream.send("Mine?", conversation_id="f" * 32)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.turn()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_stream_without_turns_ends_and_its_conversation_goes_on_in_another(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("idle")
    async with _mesh(home, with_evaluator=False, CONVERSATION_LIFETIME_S="5") as idle:
        async with talking(idle) as stream:
            first = await stream.take("Which river?", **stream.first())
            assert await stream.call.read() is grpc.aio.EOF
        async with talking(idle) as stream:
            second = await stream.take("And now?", conversation_id=first[0].conversation_id)
            assert second[-1].turn == 2


async def test_limits_of_turns_and_words_are_reported(mesh: Mesh) -> None:
    async with talking(mesh) as stream:
        await stream.take("One?", **stream.first())
        assert failure_of(await stream.take("word " * 200))[0] == "CONVERSATION_FULL"
        for question in ("Two?", "Three?", "Four?"):
            assert (await stream.take(question))[-1].event.HasField("done")
        assert failure_of(await stream.take("Five?"))[0] == "CONVERSATION_FULL"


async def test_without_an_evaluator_the_conversation_goes_on_and_says_what_is_missing(
    mesh: Mesh, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with _mesh(tmp_path_factory.mktemp("away"), with_evaluator=False) as away, talking(away) as stream:
        away.run_id = mesh.run_id
        events = await stream.take("Which river?", **stream.first(options=TARGETS))
        reasons = {event.event.degraded.reason for event in events if event.event.HasField("degraded")}
        actions = [event.event.degraded.action for event in events if event.event.HasField("degraded")]
        assert common_pb2.Degradation.ACTION_NO_REPORT in actions
        assert "UPSTREAM_UNAVAILABLE" in reasons
        assert answer_of(events) == "river0."
        assert not any(event.HasField("report") for event in events)
        await away.evaluator.start()
        await away.observed(1)  # the orchestrator has found the evaluator
        second = report_of(await stream.take("And now?"))
        assert second.so_far.relevance > 0
        assert not second.HasField("turn_relevance")
        assert second.num_words == 8


async def test_a_turn_is_a_call_and_the_first_is_the_streams_own(mesh: Mesh) -> None:
    await _limit(mesh, "[default]\ncalls_per_s = 0.001\nburst = 2\n[tenants.probe]\nburst = 1\n", holds=True)
    try:
        async with talking(mesh) as stream:
            reasons = []
            for number in range(3):
                *_, last = await stream.take("Which river?", **({} if number else stream.first()))
                reasons.append(last.failed.error.reason)
        assert reasons == ["", "", "RATE_LIMITED"]
    finally:
        await _limit(mesh, "", holds=False)


async def _limit(mesh: Mesh, content: str, *, holds: bool) -> None:
    """Writes the limits, and waits until the tenant "probe" meets one, or meets none any more."""
    await asyncio.to_thread(Path(os.environ["EVENMESH_LIMITS"]).write_text, content)
    async with asyncio.timeout(30):
        while True:
            call = mesh.stub.Ask(pb.AskRequest(), metadata=[("evenmesh-tenant", "probe")], timeout=30)
            if (await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED) is holds:
                return
            await asyncio.sleep(0.05)
