"""Bounds of feedback's messages, and page tokens that are a tenant's own."""

from __future__ import annotations

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.feedback import codec
from evenmesh_reranker.feedback.domain import Feedback
from evenmesh_reranker.feedback.training import State, Training, TrainingReport


def test_a_page_token_is_one_tenants_own() -> None:
    token = codec.page_token(7, "acme")
    assert codec.decode_page(pb.ListAgentsRequest(page_token=token), "acme") == (7, 100)
    assert codec.decode_page(pb.ListAgentsRequest(page_size=3), "acme") == (0, 3)
    for foreign in (token, "7", "7-", f"8-{token.partition('-')[2]}x", "x" * 40):
        with pytest.raises(InvalidField) as refused:
            codec.decode_page(pb.ListAgentsRequest(page_token=foreign), "other")
        assert refused.value.field == "page_token"


def _batch(items: int, ranked: int) -> pb.RecordFeedbackRequest:
    ranking = [f"p{at}" for at in range(ranked)]
    agent = common_pb2.Agent(task_id="t", model_id="m")
    return pb.RecordFeedbackRequest(
        feedback=[
            pb.Feedback(id=str(at), query="q", passage_id="p0", agent=agent, usefulness=1.0, ranking=ranking)
            for at in range(items)
        ]
    )


def test_the_rankings_of_a_batch_are_bounded_together() -> None:
    assert len(codec.decode_batch(_batch(200, 1000), "acme")) == 200
    with pytest.raises(InvalidField, match="at most 200000 passages together, have 201000"):
        codec.decode_batch(_batch(201, 1000), "acme")


def test_digests_are_computed_where_a_batch_is_read() -> None:
    (item,) = codec.decode_batch(_batch(1, 3), "acme")
    assert isinstance(item, Feedback)
    assert {"digest", "judged", "query_key"} <= set(vars(item))


@pytest.mark.parametrize(
    ("pending", "candidate", "message"),
    [
        (0, "", "nothing is being trained; 0 items of feedback wait"),
        (1, "", "nothing is being trained; 1 item of feedback waits"),
        (2, "v2", "nothing is being trained; 2 items of feedback wait, and 1 candidate to be promoted"),
    ],
)
def test_what_waits_is_counted_in_words(pending: int, candidate: str, message: str) -> None:
    report = TrainingReport(AllAgents("acme"), State.IDLE, candidate_version=candidate)
    assert codec.encode_trainings([Training(report, pending, pending, None)], 0).message == message


def _waits(scope: Scope, pending: int) -> Training:
    return Training(TrainingReport(scope, State.IDLE), pending, pending, None)


def test_feedback_waits_once_although_it_waits_for_two_trainings() -> None:
    of_agents = [_waits(Agent("qa", "ann"), 2), _waits(Agent("qa", "bob"), 0)]
    for trainings, waiting in (([], 0), (of_agents, 2), ([_waits(AllAgents(), 3), *of_agents], 3)):
        found = codec.encode_trainings(trainings, 0)
        assert (found.pending_feedback, len(found.trainings)) == (waiting, len(trainings))
        assert found.state == pb.GetTrainingStatusResponse.STATE_IDLE
        assert found.message == f"nothing is being trained; {waiting} items of feedback wait"
