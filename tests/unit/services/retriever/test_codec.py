"""Messages to domain and back, and every bound of the contract."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from meshkit.errors import InvalidField
from ragmesh.common.v1.common_pb2 import Passage as PassageProto
from ragmesh.common.v1.common_pb2 import Sampling
from ragmesh.retriever.v1.collection_service_pb2 import IngestRequest
from ragmesh.retriever.v1.retriever_service_pb2 import InlineCandidates, RetrieveRequest
from services.retriever import codec
from services.retriever.domain import CollectionInfo, Draw, Passage, Query, Retrieval


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
    assert codec.query_of(request) == Query(
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
    query = codec.query_of(RetrieveRequest(query="q", collection="c", sampling=Sampling()))
    assert (query.depth, query.k, query.draw) == (None, None, Draw(1.0, 1, 0))
    assert codec.query_of(RetrieveRequest(query="q", collection="c")).draw is None


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
        codec.query_of(request_)
    assert error.value.field == field


def test_the_answer_is_columns_and_indices() -> None:
    response = codec.response_of(
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


def test_a_collection() -> None:
    made = datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)
    message = codec.collection_of(CollectionInfo("c", "v", 3, 99, "enc", made, "about", "ana"))
    assert message.updated_at.ToDatetime(tzinfo=UTC) == made
    assert (message.name, message.version, message.num_passages, message.size_bytes) == ("c", "v", 3, 99)
    assert (message.encoder, message.description, message.analyzer) == ("enc", "about", "ana")


def read(*requests: IngestRequest) -> codec.IngestReader:
    reader = codec.IngestReader()
    for request in requests:
        reader.head(request)
        reader.body(request)
    reader.end()
    return reader


def test_an_ingest_stream_in_parts() -> None:
    reader = read(
        IngestRequest(collection="c", create_if_missing=True),
        IngestRequest(passages=[PassageProto(id="a", text="x")]),
        IngestRequest(collection="c", passages=[PassageProto(id="b", title="y")], last=True),
    )
    assert (reader.collection, reader.create) == ("c", True)
    assert reader.passages == [Passage("a", "", "x"), Passage("b", "y", "")]


PART = IngestRequest(
    collection="c", passages=[PassageProto(id="a", text="x"), PassageProto(id="b", text="x")]
)


@pytest.mark.parametrize(
    ("field", "requests"),
    [
        ("collection", []),
        ("last", [PART]),
        ("last", [IngestRequest(collection="c", last=True), IngestRequest()]),
        ("collection", [IngestRequest(passages=PART.passages)]),
        ("collection", [PART, IngestRequest(collection="d")]),
        (
            "passages",
            [
                IngestRequest(
                    collection="c", passages=[PassageProto(id=str(i), text="x") for i in range(1001)]
                )
            ],
        ),
        ("passages[2].id", [PART, IngestRequest(passages=[PassageProto(id="", text="x")])]),
        ("passages[2].id", [PART, IngestRequest(passages=[PassageProto(id="b", text="x")])]),
        ("passages[3].text", [PART, IngestRequest(passages=[PassageProto(id="c", text="x"), LONG])]),
    ],
)
def test_errors_of_a_stream_count_over_all_of_it(field: str, requests: list[IngestRequest]) -> None:
    with pytest.raises(InvalidField) as error:
        read(*requests)
    assert error.value.field == field


def test_ids_to_remove() -> None:
    assert codec.ids_of(["b", "a", "b"]) == ["b", "a"]
    for field, ids in [
        ("passage_ids", []),
        ("passage_ids", [str(number) for number in range(10_001)]),
        ("passage_ids[1]", ["a", ""]),
        ("passage_ids[0]", ["x" * 257]),
    ]:
        with pytest.raises(InvalidField) as error:
            codec.ids_of(ids)
        assert error.value.field == field


def test_a_description_has_a_bound() -> None:
    assert codec.description_of("ä" * 512) == "ä" * 512
    with pytest.raises(InvalidField, match="has 1026"):
        codec.description_of("ä" * 513)
