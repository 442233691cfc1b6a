"""Conversations as messages: what stays from turn to turn, and every bound with its field."""

import math
from typing import Any

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_orchestrator.asks.request import Defaults
from evenmesh_orchestrator.conversations import codec
from evenmesh_orchestrator.conversations.conversation import Conversation, Limits, TurnRecord
from evenmesh_orchestrator.conversations.sources import Cited
from evenmesh_orchestrator.conversations.turns import Measured


def take(conversation: Conversation, **request: Any) -> Any:
    """Reads a turn as the servicer does."""
    read, conversation.settings = codec.read_turn(
        pb.AskRequest(**request), conversation, Defaults("demo", "rankrag")
    )
    conversation.run_id = read.run_id
    return read


def options(**fields: Any) -> Any:
    return codec.read_options(pb.ConversationOptions(**fields))


def test_how_to_answer_is_kept_until_it_is_set_again_as_a_whole() -> None:
    conversation = Conversation("id", Limits())
    take(conversation, question="One?", collection="c", k=2, run_id="run")
    second = take(conversation, question="Two?", labels={"has_useful": True, "useful_passage_ids": ["p"]})
    assert (second.question, second.collection, second.k, second.run_id) == ("Two?", "c", 2, "run")
    assert second.labels.useful_passage_ids == ["p"]
    third = take(conversation, question="Three?", query_id="q3")
    assert (third.collection, third.query_id, third.labels.has_useful) == ("c", "q3", False)
    fourth = take(conversation, question="Four?", depth=7)
    assert (fourth.collection, fourth.k, fourth.depth, fourth.run_id) == ("demo", 5, 7, "run")


def test_a_conversation_holds_its_turns_itself() -> None:
    with pytest.raises(InvalidField) as refused:
        take(Conversation("id", Limits()), question="Two?", turns=[{"question": "One?"}])
    assert refused.value.field == "ask.turns"


def test_a_turn_says_nothing_of_what_to_search_for() -> None:
    """The history decides: what a turn says would be dropped without a word."""
    with pytest.raises(InvalidField) as refused:
        take(Conversation("id", Limits()), question="Two?", search="oil")
    assert refused.value.field == "ask.search"


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"history": 9}, "options.history"),
        ({"history_turns": 0}, "options.history_turns"),
        ({"patience": 0}, "options.patience"),
        ({"relevance_weight": 1.5}, "options.relevance_weight"),
        ({"method": 9}, "options.method"),
        ({"irrelevant_turns": 9}, "options.irrelevant_turns"),
        ({"template": "x" * 129}, "options.template"),
        ({"targets": [{"attribute": "a b", "groups": ["x", "y"]}]}, "options.targets[0].attribute"),
        ({"targets": [{"attribute": "a", "groups": ["x"]}]}, "options.targets[0].groups"),
        ({"targets": [{"attribute": "a", "groups": ["x", "x"]}]}, "options.targets[0].groups[1]"),
        ({"targets": [{"attribute": "a", "groups": ["x", " "]}]}, "options.targets[0].groups[1]"),
        ({"targets": [{"attribute": "a", "groups": ["x", "y"], "shares": [1]}]}, "options.targets[0].shares"),
        (
            {"targets": [{"attribute": "a", "groups": ["x", "y"], "shares": [0.5, 0.4]}]},
            "options.targets[0].shares",
        ),
        (
            {"targets": [{"attribute": "a", "groups": ["x", "y"], "shares": [1.5, -0.5]}]},
            "options.targets[0].shares[0]",
        ),
        (
            {"targets": [{"attribute": "a", "groups": ["x", "y"], "divergence": 9}]},
            "options.targets[0].divergence",
        ),
        ({"targets": [{"attribute": "a", "groups": ["x", "y"]}] * 2}, "options.targets[1].attribute"),
    ],
)
def test_every_bound_names_its_field(fields: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidField) as caught:
        options(**fields)
    assert caught.value.field == at


def test_defaults_of_the_contract() -> None:
    read = options(targets=[{"attribute": "provider", "groups": ["P", "Q"]}])
    assert (read.history, read.history_turns, read.template) == (
        pb.ConversationOptions.HISTORY_WORDS,
        10,
        "",
    )
    (target,) = read.targets
    assert target.shares == (0.5, 0.5)
    assert target.divergence == evaluator_pb.AttributeTarget.DIVERGENCE_JSD
    assert codec.timeout_s(pb.ConverseRequest(), 7.0) == 7.0
    assert codec.timeout_s(pb.ConverseRequest(timeout_ms=1500), 7.0) == 1.5
    with pytest.raises(InvalidField):
        codec.timeout_s(pb.ConverseRequest(timeout_ms=0), 7.0)


def test_a_report_says_what_the_turn_added() -> None:
    conversation = Conversation(
        "id", Limits(), options=options(targets=[{"attribute": "provider", "groups": ["P", "Q"]}])
    )
    record = TurnRecord("one", "two", (Cited("p", "", "c", {"provider": "P"}, 2),))
    state = conversation.state(record)

    def report(similarity: float) -> pb.ConversationReport:
        said = evaluator_pb.EvaluateConversationResponse(relevance=0.5)
        said.attributes["provider"].similarity.append(similarity)
        return codec.response(conversation, Measured(state, said)).report

    conversation.relevance = 0.2
    first = report(0.75)
    assert first.turn_relevance == pytest.approx(0.5 - 0.2)
    assert first.turn_group_fairness == 0.75
    assert [(one.passage_id, one.word_count, one.level) for one in first.entities] == [("p", 3, 2)]
    conversation.relevance = None
    second = report(math.nan)
    assert not second.HasField("turn_relevance")
    assert not second.HasField("turn_group_fairness")
