"""Collections and ingest streams to domain and back, and every bound of the contract."""

from datetime import UTC, datetime

import pytest

from evenmesh.common.v1.common_pb2 import Passage as PassageProto
from evenmesh.retriever.v1.collection_service_pb2 import IngestRequest
from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.codec import collections
from evenmesh_retriever.domain import CollectionInfo, Passage

LONG = PassageProto(id="a", text="x" * 65_537)


def test_a_collection() -> None:
    made = datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)
    message = collections.collection_of(CollectionInfo("c", "v", 3, 99, "enc", made, "about", "ana"))
    assert message.updated_at.ToDatetime(tzinfo=UTC) == made
    assert (message.name, message.version, message.num_passages, message.size_bytes) == ("c", "v", 3, 99)
    assert (message.encoder, message.description, message.analyzer) == ("enc", "about", "ana")


def read(*requests: IngestRequest) -> collections.IngestReader:
    reader = collections.IngestReader()
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
    assert collections.ids_of(["b", "a", "b"]) == ["b", "a"]
    for field, ids in [
        ("passage_ids", []),
        ("passage_ids", [str(number) for number in range(10_001)]),
        ("passage_ids[1]", ["a", ""]),
        ("passage_ids[0]", ["x" * 257]),
    ]:
        with pytest.raises(InvalidField) as error:
            collections.ids_of(ids)
        assert error.value.field == field


def test_a_description_has_a_bound() -> None:
    assert collections.description_of("ä" * 512) == "ä" * 512
    with pytest.raises(InvalidField, match="has 1026"):
        collections.description_of("ä" * 513)
