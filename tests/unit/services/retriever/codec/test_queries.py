"""Queries and answers to domain and back, and every bound of the contract."""

import math

import numpy as np
import pytest

from meshkit.errors import InvalidField
from ragmesh.common.v1.common_pb2 import Passage as PassageProto
from ragmesh.common.v1.common_pb2 import Sampling
from ragmesh.retriever.v1.retriever_service_pb2 import InlineCandidates, RetrieveRequest
from services.retriever.codec import queries
from services.retriever.domain import Draw, Passage, Query, Retrieval


def candidates(*passages: PassageProto) -> InlineCandidates:
    return InlineCandidates(passages=passages)


def test_a_query_with_all_its_fields() -> None:
    request = RetrieveRequest(
        query="who?",
        candidates=candidates(PassageProto(id="a", title="t", text="x", attributes={"provider": "p"})),
        retriever="bm25",
        depth=1,
        k=1,
        sampling=Sampling(alpha=0, num_rankings=7, seed=2**63 - 1),
        include_inclusion_probabilities=True,
        stream_id="s",
    )
    assert queries.query_of(request) == Query(
        text="who?",
        collection="",
        candidates=[Passage("a", "t", "x", {"provider": "p"})],
        retriever="bm25",
        depth=1,
        k=1,
        draw=Draw(alpha=0.0, num_rankings=7, seed=2**63 - 1),
        with_inclusion=True,
        stream_id="s",
    )


def test_unset_is_not_zero() -> None:
    query = queries.query_of(RetrieveRequest(query="q", collection="c", sampling=Sampling()))
    assert (query.depth, query.k, query.draw) == (None, None, Draw(1.0, 1, 0))
    assert queries.query_of(RetrieveRequest(query="q", collection="c")).draw is None


LONG = PassageProto(id="a", text="x" * 65_537)

BAD_QUERIES = [
    ("query", RetrieveRequest(collection="c")),
    ("query", RetrieveRequest(query=" \n\t", collection="c")),
    ("query", RetrieveRequest(query="x" * 8193, collection="c")),
    ("collection", RetrieveRequest(query="q")),
    ("collection", RetrieveRequest(query="q", collection="")),
    ("collection", RetrieveRequest(query="q", collection="Not-A-Name")),
    ("candidates.passages", RetrieveRequest(query="q", candidates=candidates())),
    (
        "candidates.passages",
        RetrieveRequest(
            query="q", candidates=candidates(*[PassageProto(id=str(i), text="x") for i in range(1001)])
        ),
    ),
    ("candidates.passages[0].id", RetrieveRequest(query="q", candidates=candidates(PassageProto(text="x")))),
    (
        "candidates.passages[0].id",
        RetrieveRequest(query="q", candidates=candidates(PassageProto(id="a\n", text="x"))),
    ),
    ("candidates.passages[0].text", RetrieveRequest(query="q", candidates=candidates(PassageProto(id="a")))),
    ("candidates.passages[0].text", RetrieveRequest(query="q", candidates=candidates(LONG))),
    (
        "candidates.passages[1].id",
        RetrieveRequest(
            query="q", candidates=candidates(PassageProto(id="a", text="x"), PassageProto(id="a", text="y"))
        ),
    ),
    (
        "candidates.passages[0].attributes",
        RetrieveRequest(
            query="q", candidates=candidates(PassageProto(id="a", text="x", attributes={"k": "v" * 1024}))
        ),
    ),
    ("depth", RetrieveRequest(query="q", collection="c", depth=0)),
    ("depth", RetrieveRequest(query="q", collection="c", depth=1001)),
    ("k", RetrieveRequest(query="q", collection="c", k=0)),
    ("k", RetrieveRequest(query="q", collection="c", k=1001)),
    ("sampling.alpha", RetrieveRequest(query="q", collection="c", sampling=Sampling(alpha=-0.1))),
    ("sampling.alpha", RetrieveRequest(query="q", collection="c", sampling=Sampling(alpha=100.1))),
    ("sampling.alpha", RetrieveRequest(query="q", collection="c", sampling=Sampling(alpha=math.nan))),
    ("sampling.alpha", RetrieveRequest(query="q", collection="c", sampling=Sampling(alpha=math.inf))),
    ("sampling.num_rankings", RetrieveRequest(query="q", collection="c", sampling=Sampling(num_rankings=0))),
    (
        "sampling.num_rankings",
        RetrieveRequest(query="q", collection="c", sampling=Sampling(num_rankings=1001)),
    ),
    ("sampling.seed", RetrieveRequest(query="q", collection="c", sampling=Sampling(seed=2**63))),
]


@pytest.mark.parametrize(("field", "request_"), BAD_QUERIES)
def test_a_bound_that_is_passed_names_the_field(field: str, request_: RetrieveRequest) -> None:
    with pytest.raises(InvalidField) as error:
        queries.query_of(request_)
    assert error.value.field == field


def test_the_answer_is_columns_and_indices() -> None:
    response = queries.response_of(
        Retrieval(
            passages=[Passage("a", "t", "x", {"provider": "p"}), Passage("b", "", "y")],
            scores=np.array([2.0, 1.0]),
            rankings=np.array([[0, 1], [1, 0], [0, 1]]),
            log_probabilities=np.array([-0.1, -2.0, -0.1]),
            inclusion=np.array([1.0, 1.0]),
            version="000001-0123456789ab",
            retriever="bm25",
        )
    )
    assert [passage.id for passage in response.passages] == ["a", "b"]
    assert dict(response.passages[0].attributes) == {"provider": "p"}
    assert list(response.scores) == [2.0, 1.0]
    assert response.rankings.depth == 2
    assert list(response.rankings.indices) == [0, 1, 1, 0, 0, 1]
    assert list(response.rankings.log_probabilities) == [-0.1, -2.0, -0.1]
    assert list(response.inclusion_probabilities) == [1.0, 1.0]
    assert (response.index_version, response.retriever) == ("000001-0123456789ab", "bm25")
