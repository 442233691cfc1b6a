"""Translate collections, ingest streams and deletions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.analyzer import ANALYZERS
from evenmesh_retriever.codec.passages import message_of, passage_of
from evenmesh_retriever.domain import CollectionInfo, Lexical, Passage
from evenmesh_retriever.ports import Snapshot

MAX_INGEST_PASSAGES: Final = 1000
MAX_IDS: Final = 10_000
MAX_DESCRIPTION_BYTES: Final = 1024
MAX_K1: Final = 10
PAGE_BYTES: Final = 2**20
"""Passages of one message of a listing, about. Bytes."""
_READ_AT_ONCE: Final = 100

P = TypeVar("P", collections_pb.ListPassagesResponse, collections_pb.GetPassagesResponse)


def collection_of(info: CollectionInfo) -> collections_pb.Collection:
    """Write a collection."""
    updated_at = Timestamp()
    updated_at.FromDatetime(info.updated_at)
    message = collections_pb.Collection(
        name=info.name,
        version=info.version,
        num_passages=info.num_passages,
        size_bytes=info.size_bytes,
        encoder=info.encoder,
        updated_at=updated_at,
        description=info.description,
        analyzer=info.analyzer,
        lexical=collections_pb.LexicalIndexing(
            analyzer=info.lexical.analyzer, k1=info.lexical.k1, b=info.lexical.b
        ),
        dense_kind=info.dense_kind,
        dense_recall=info.dense_recall,
        num_segments=info.num_segments,
        num_tombstones=info.num_tombstones,
        embedded=info.embedded,
        warning=info.warning,
    )
    if info.as_of is not None:
        message.as_of.FromDatetime(info.as_of)
    return message


def lexical_of(message: collections_pb.LexicalIndexing) -> Lexical:
    """Read how text is to be indexed.

    Raises:
        InvalidField: no such analyzer, or a number outside its bounds.
    """
    name = message.analyzer
    if name and name not in ANALYZERS:
        raise InvalidField("lexical.analyzer", f"must be one of {', '.join(ANALYZERS)}, got {name!r}")
    k1 = checks.between("lexical.k1", message.k1, 0, MAX_K1) if message.HasField("k1") else None
    b = checks.between("lexical.b", message.b, 0, 1) if message.HasField("b") else None
    return Lexical(name, k1, b)


def pages_of(snapshot: Snapshot, prefix: str = "") -> Iterator[collections_pb.ListPassagesResponse]:
    """Write the passages of a version whose ids begin with ``prefix``, by ascending id."""
    first = collections_pb.ListPassagesResponse(
        version=snapshot.info.version, collection=collection_of(snapshot.info)
    )
    return _in_messages(first, chain.from_iterable(snapshot.pages(_READ_AT_ONCE, prefix)))


def named_of(snapshot: Snapshot, ids: Sequence[str]) -> Iterator[collections_pb.GetPassagesResponse]:
    """Write the passages of some ids."""
    first = collections_pb.GetPassagesResponse(version=snapshot.info.version)
    parts = (ids[begin : begin + _READ_AT_ONCE] for begin in range(0, len(ids), _READ_AT_ONCE))
    return _in_messages(first, chain.from_iterable(map(snapshot.passages_of, parts)))


def _in_messages(page: P, passages: Iterable[Passage]) -> Iterator[P]:
    """Write passages into messages of moderate size, of which ``page`` is the first; one at least."""
    version, size = page.version, 0
    for passage in passages:
        message = message_of(passage)
        size += message.ByteSize()
        if page.passages and (size > PAGE_BYTES or len(page.passages) == MAX_INGEST_PASSAGES):
            yield page
            page = type(page)(version=version)
            size = message.ByteSize()
        page.passages.append(message)
    yield page


class IngestReader:
    """Reads an ingest stream part by part; errors count passages over the whole stream."""

    def __init__(self) -> None:
        self.collection = ""
        self.create = False
        self.passages: list[Passage] = []
        self._rows: dict[str, int] = {}
        self._begun = False
        self._ended = False

    def head(self, request: collections_pb.IngestRequest) -> None:
        """Read all of a part but its passages.

        Raises:
            InvalidField: no collection in the first part, another in a later one, too many passages, or a
                part after the last.
        """
        if self._ended:
            raise InvalidField("last", "must be set in the last message of the stream only")
        self._ended = request.last
        if not self._begun:
            self.collection = checks.name("collection", request.collection)
            self.create = request.create_if_missing
            self._begun = True
        elif request.collection not in ("", self.collection):
            raise InvalidField(
                "collection", f"must be {self.collection!r}, as in the first message of the stream, or empty"
            )
        if len(request.passages) > MAX_INGEST_PASSAGES:
            raise InvalidField(
                "passages", f"must be at most {MAX_INGEST_PASSAGES} a message, has {len(request.passages)}"
            )

    def body(self, request: collections_pb.IngestRequest) -> None:
        """Read a part's passages.

        Raises:
            InvalidField: a passage is outside its bounds, or its id was in the stream already.
        """
        for message in request.passages:
            row = len(self.passages)
            checks.passage(f"passages[{row}]", message)
            first = self._rows.setdefault(message.id, row)
            if first != row:
                raise InvalidField(f"passages[{row}].id", f"is the id of passages[{first}] too")
            self.passages.append(passage_of(message))

    def end(self) -> None:
        """Check that the stream is whole.

        A stream that its caller ended looks like one whose caller died: the last part says which.

        Raises:
            InvalidField: there was no message, or none that was the last.
        """
        if not self._begun:
            raise InvalidField("collection", "must be given in the first message, and there was none")
        if not self._ended:
            raise InvalidField(
                "last", "must be set in the last message; the stream ended without it and nothing was kept"
            )


def ids_of(ids: Iterable[str]) -> list[str]:
    """Read the ids of passages to remove or to give, each once.

    Raises:
        InvalidField: none or too many, or one that cannot be an id.
    """
    given = list(ids)
    if not 1 <= len(given) <= MAX_IDS:
        raise InvalidField("passage_ids", f"must be 1 to {MAX_IDS} ids, has {len(given)}")
    for index, one in enumerate(given):
        checks.text(f"passage_ids[{index}]", one, max_bytes=checks.MAX_ID_BYTES)
    return list(dict.fromkeys(given))


def description_of(text: str) -> str:
    """Read the description of a collection.

    Raises:
        InvalidField: it is too long.
    """
    return checks.at_most("description", text, MAX_DESCRIPTION_BYTES)
