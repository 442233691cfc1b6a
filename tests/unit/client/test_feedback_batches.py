"""Feedback is sent in calls that the service takes: items, bytes and ranked passages of each are bounded."""

from __future__ import annotations

from dataclasses import replace

from evenmesh import Agent, Feedback
from evenmesh.codec.feedback import record_requests
from evenmesh.wire.methods import facts_of
from evenmesh_reranker.feedback import codec

ONE = Feedback("q", "p", 1.0, Agent("qa", "ann"))
MOST_BYTES = facts_of("/evenmesh.reranker.v1.FeedbackService/RecordFeedback").max_request_bytes


def test_a_call_has_at_most_a_thousand_items() -> None:
    requests = list(record_requests(replace(ONE, id=str(at)) for at in range(2_500)))
    assert [len(one.feedback) for one in requests] == [1_000, 1_000, 500]
    assert [item.id for one in requests for item in one.feedback] == [str(at) for at in range(2_500)]
    assert list(record_requests([])) == []


def test_a_call_has_at_most_the_bytes_of_the_contract() -> None:
    items = [replace(ONE, id=str(at), query="q" * 8_000, ranking=ids(20, 500)) for at in range(1_000)]
    requests = list(record_requests(items))
    assert len(requests) == 2  # of 18 MB in all
    assert all(one.ByteSize() <= MOST_BYTES for one in requests)
    assert [item.id for one in requests for item in one.feedback] == [str(at) for at in range(1_000)]


def test_a_call_ranks_as_many_passages_as_the_service_takes() -> None:
    requests = list(record_requests(replace(ONE, id=str(at), ranking=ids(900, 4)) for at in range(400)))
    assert [len(one.feedback) for one in requests] == [222, 178]  # 900 each, and 200,000 together
    for one in requests:
        assert len(codec.decode_batch(one, "tenant")) == len(one.feedback)


def ids(count: int, size: int) -> tuple[str, ...]:
    return ("p", *(f"{at:0{size}d}" for at in range(count - 1)))
