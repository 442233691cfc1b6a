"""Bounds of observations: each broken bound names its field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator.domain import Configuration, Stage, UtilityMetric
from evenmesh_evaluator.observations import codec as observations


def _conversation() -> pb.ObservedConversation:
    share = pb.Distribution(shares=[0.5, 0.5])
    nugget = pb.Nugget(word_count=3, gain=0.5, membership={"g": share})
    judged = pb.EvaluateConversationRequest(
        turns=[pb.ConversationTurn(nuggets=[nugget])], attributes={"g": pb.AttributeTarget(gold=share)}
    )
    return pb.ObservedConversation(conversation_id="c-1", judged=judged)


def _message() -> pb.Observation:
    message = pb.Observation(
        id="o-1",
        run_id="run",
        query_id="q-1",
        question="Who?",
        collection="demo",
        retriever="bm25",
        reranker="none",
        generator="pointer",
        alpha=2.0,
        seed=7,
        candidates=[pb.Candidate(passage_id=f"p{i}", provider="P") for i in range(4)],
        shown=common_pb2.Rankings(depth=2, indices=[0, 1, 0, 2], log_probabilities=[-1.0, -2.0]),
        answers=[pb.SampledAnswer(text="Rhine", samples=[0, 1], log_probability=-0.5)],
        labels=pb.Labels(useful_passage_ids=["p0"], has_useful=True, references=["Rhine"]),
        stage_times=[common_pb2.StageTime(stage=common_pb2.STAGE_RETRIEVE, duration_ms=1.5)],
        degradations=[
            common_pb2.Degradation(
                stage=common_pb2.STAGE_RERANK,
                action=common_pb2.Degradation.ACTION_RETRIEVER_ORDER,
                reason="BUDGET_EXCEEDED",
            )
        ],
        ranking_retrievers=["bm25", "dense"],
        vote_winner=0,
        conversation=_conversation(),
    )
    message.candidates[1].text = "text"
    message.observed_at.FromMicroseconds(1_700_000_000_000_001)
    return message


def test_everything_is_read() -> None:
    message = _message()
    observation = observations.observation(message, now_us=0)
    assert observation.id == "o-1"
    assert observation.shown.tolist() == [[0, 1], [0, 2]]
    assert observation.observed_at_us == 1_700_000_000_000_001
    assert observation.labels.useful == {"p0"}
    assert observation.labels.metric is UtilityMetric.TOKEN_F1
    assert observation.stage_ms == {Stage.RETRIEVE: 1.5}
    assert observation.degradations == [(Stage.RERANK, "BUDGET_EXCEEDED")]
    assert observation.configuration == Configuration("demo", "bm25", "none", "pointer", 2.0)
    assert observation.texts == ["", "text", "", ""]
    assert observation.vote_winner == 0
    assert observation.conversation is not None
    assert observation.conversation.id == "c-1"
    assert observation.conversation.judged.turns[0][0].gain == 0.5
    assert pb.Observation.FromString(observation.payload) == message


def test_unset_time_is_now_and_unset_usefulness_is_unknown() -> None:
    message = _message()
    message.ClearField("observed_at")
    message.ClearField("labels")
    message.ClearField("alpha")
    observation = observations.observation(message, now_us=42)
    assert observation.observed_at_us == 42
    assert observation.labels.useful is None
    assert observation.configuration.alpha is None


def test_asks_with_a_target_belong_together_whatever_their_dials() -> None:
    message = _message()
    message.policy.CopyFrom(common_pb2.Policy(target_disparity=0.3, alpha=2.0, disparity=0.3, reached=True))
    found = observations.observation(message, now_us=0).configuration
    assert found == Configuration("demo", "bm25", "none", "pointer", None, "disparity 0.3")
    message.policy.ClearField("target_disparity")
    message.policy.target_relevance_loss = 0.02
    found = observations.observation(message, now_us=0).configuration
    assert (found.alpha, found.target) == (None, "relevance loss 0.02")
    message.policy.ClearField("target_relevance_loss")
    message.policy.target_shares.add(attribute="provider", at_most=0.4)
    found = observations.observation(message, now_us=0).configuration
    assert (found.alpha, found.target) == (None, "provider at most 0.4")


def test_no_context_is_one_ranking_of_nothing() -> None:
    message = _message()
    message.ClearField("candidates")
    message.ClearField("shown")
    message.ClearField("ranking_retrievers")
    message.answers[0].samples[:] = [0]
    assert observations.observation(message, now_us=0).shown.shape == (1, 0)


def test_a_vote_has_a_ranking_of_nothing_for_each_of_its_members() -> None:
    message = _message()
    message.ClearField("candidates")
    message.ClearField("shown")
    message.ranking_retrievers[:] = ["bm25", "dense", "splade"]
    message.answers[0].samples[:] = [0, 2]
    assert observations.observation(message, now_us=0).shown.shape == (3, 0)
    message.answers[0].samples[:] = [3]
    with pytest.raises(InvalidField, match="below the number of rankings, 3"):
        observations.observation(message, now_us=0)
    message.ranking_retrievers[:] = [f"r{i}" for i in range(1001)]
    with pytest.raises(InvalidField, match="one per ranking, 1000; 1001 are given"):
        observations.observation(message, now_us=0)


Broken = Callable[[pb.Observation], object]

BROKEN: list[tuple[str, Broken]] = [
    ("id", lambda m: m.ClearField("id")),
    ("id", lambda m: setattr(m, "id", "x" * 129)),
    ("id", lambda m: setattr(m, "id", "line\nbreak")),
    ("run_id", lambda m: m.ClearField("run_id")),
    ("query_id", lambda m: setattr(m, "query_id", "é" * 65)),
    ("question", lambda m: setattr(m, "question", "x" * 8193)),
    ("retriever", lambda m: setattr(m, "retriever", "x" * 257)),
    ("alpha", lambda m: setattr(m, "alpha", float("nan"))),
    ("alpha", lambda m: setattr(m, "alpha", -0.1)),
    ("alpha", lambda m: setattr(m, "alpha", 100.1)),
    ("seed", lambda m: setattr(m, "seed", 2**63)),
    ("policy", lambda m: m.policy.SetInParent()),
    ("policy.target_disparity", lambda m: setattr(m.policy, "target_disparity", 1.1)),
    ("policy.target_relevance_loss", lambda m: setattr(m.policy, "target_relevance_loss", float("nan"))),
    ("policy.alpha", lambda m: setattr(m.policy, "alpha", 101)),
    ("policy.relevance", lambda m: setattr(m.policy, "relevance", -1)),
    ("candidates", lambda m: m.candidates.extend([pb.Candidate(passage_id=f"x{i}") for i in range(997)])),
    ("candidates[1].passage_id", lambda m: setattr(m.candidates[1], "passage_id", "")),
    ("candidates[1].passage_id", lambda m: setattr(m.candidates[1], "passage_id", "é" * 129)),
    ("candidates[3].id", lambda m: setattr(m.candidates[3], "passage_id", "p0")),
    ("candidates[2]", lambda m: setattr(m.candidates[2], "passage_id", "p\x07")),
    ("candidates[0].provider", lambda m: setattr(m.candidates[0], "provider", "x" * 1025)),
    ("shown.depth", lambda m: setattr(m.shown, "depth", 1001)),
    ("shown.depth", lambda m: setattr(m.shown, "depth", 0)),
    ("shown.indices", lambda m: m.shown.indices.append(3)),
    ("shown.indices", lambda m: m.shown.ClearField("indices")),
    ("shown.indices[3]", lambda m: m.shown.indices.__setitem__(3, 4)),
    ("shown.indices", lambda m: m.shown.indices.__setitem__(3, 0)),
    ("shown.log_probabilities", lambda m: m.shown.log_probabilities.append(-1.0)),
    ("shown.log_probabilities[1]", lambda m: m.shown.log_probabilities.__setitem__(1, 0.5)),
    ("answers[0].samples[1]", lambda m: m.answers[0].samples.__setitem__(1, 2)),
    ("answers[0].samples[1]", lambda m: m.answers[0].samples.__setitem__(1, 0)),
    ("answers[0].samples", lambda m: m.answers[0].ClearField("samples")),
    ("answers[0].log_probability", lambda m: setattr(m.answers[0], "log_probability", 0.1)),
    ("answers[0].log_probability", lambda m: setattr(m.answers[0], "log_probability", float("-inf"))),
    ("labels.useful_passage_ids[0]", lambda m: m.labels.useful_passage_ids.__setitem__(0, "")),
    ("labels.has_useful", lambda m: setattr(m.labels, "has_useful", False)),
    ("labels.metric", lambda m: setattr(m.labels, "metric", 99)),
    ("stage_times[0].stage", lambda m: m.stage_times[0].ClearField("stage")),
    ("stage_times[0].duration_ms", lambda m: setattr(m.stage_times[0], "duration_ms", -1.0)),
    ("stage_times[0].duration_ms", lambda m: setattr(m.stage_times[0], "duration_ms", float("inf"))),
    ("stage_times[1].stage", lambda m: m.stage_times.add(stage=common_pb2.STAGE_RETRIEVE)),
    ("degradations[0].stage", lambda m: setattr(m.degradations[0], "stage", 17)),
    ("degradations[0].action", lambda m: setattr(m.degradations[0], "action", 17)),
    ("degradations[0].reason", lambda m: m.degradations[0].ClearField("reason")),
    ("degradations", lambda m: m.degradations.extend([m.degradations[0]] * 1000)),
    ("candidates[2].text", lambda m: setattr(m.candidates[2], "text", "x" * 65_537)),
    ("ranking_retrievers", lambda m: m.ranking_retrievers.append("splade")),
    ("ranking_retrievers[1]", lambda m: m.ranking_retrievers.__setitem__(1, "")),
    ("ranking_retrievers[0]", lambda m: m.ranking_retrievers.__setitem__(0, "x" * 257)),
    ("vote_winner", lambda m: setattr(m, "vote_winner", 1)),
    ("conversation.conversation_id", lambda m: m.conversation.ClearField("conversation_id")),
    ("conversation.conversation_id", lambda m: setattr(m.conversation, "conversation_id", "x" * 129)),
    ("conversation.judged.turns", lambda m: m.conversation.judged.ClearField("turns")),
    (
        "conversation.judged.turns[0].nuggets[0].gain",
        lambda m: setattr(m.conversation.judged.turns[0].nuggets[0], "gain", 2.0),
    ),
    ("observed_at", lambda m: setattr(m.observed_at, "nanos", 10**9)),
    ("observed_at", lambda m: setattr(m.observed_at, "seconds", 2**60)),
]


@pytest.mark.parametrize(("field", "broken"), BROKEN, ids=[f"{i}-{f}" for i, (f, _) in enumerate(BROKEN)])
def test_a_broken_bound_names_its_field(field: str, broken: Broken) -> None:
    message = _message()
    broken(message)
    with pytest.raises(InvalidField) as caught:
        observations.observation(message, now_us=0)
    assert caught.value.field == field
