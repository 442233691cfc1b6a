"""What a retriever found must fit together: a server that is none of ours may say anything."""

from __future__ import annotations

import math

import pytest

from evenmesh.common.v1.common_pb2 import Passage, Rankings
from evenmesh.retriever.v1.retriever_service_pb2 import RetrieveResponse
from evenmesh.wire.errors import MeshError
from evenmesh_orchestrator import codec

PASSAGES = [Passage(id="a", text="x"), Passage(id="b", text="y")]


def test_what_fits_is_read() -> None:
    rankings = Rankings(depth=1, indices=[1, 0], log_probabilities=[-1.0, -0.5])
    pool = codec.pool(RetrieveResponse(passages=PASSAGES, scores=[2.0, 1.0], rankings=rankings))
    assert pool.rankings.tolist() == [[1], [0]]


def test_samples_of_nothing_are_fine() -> None:
    found = RetrieveResponse(rankings=Rankings(depth=0, log_probabilities=[0.0] * 20))
    assert codec.pool(found).passages == []


@pytest.mark.parametrize(
    "odd",
    [
        RetrieveResponse(passages=PASSAGES, scores=[1.0]),
        RetrieveResponse(passages=PASSAGES, scores=[1.0, math.nan]),
        RetrieveResponse(passages=PASSAGES, scores=[1.0, math.inf]),
        RetrieveResponse(passages=PASSAGES, scores=[2.0, 1.0], rankings=Rankings(depth=2, indices=[0])),
        RetrieveResponse(passages=PASSAGES, scores=[2.0, 1.0], rankings=Rankings(depth=1, indices=[2])),
        RetrieveResponse(
            passages=PASSAGES,
            scores=[2.0, 1.0],
            rankings=Rankings(depth=1, indices=[0], log_probabilities=[0, 0]),
        ),
    ],
    ids=["too few scores", "no number", "infinite", "half a ranking", "no such passage", "too many samples"],
)
def test_what_does_not_is_the_retrievers_fault(odd: RetrieveResponse) -> None:
    with pytest.raises(MeshError) as raised:
        codec.pool(odd)
    assert raised.value.reason == "UPSTREAM_ERROR"
