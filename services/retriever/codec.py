"""Protos to the retriever's own shapes and back, and the checks at the door."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.plackett_luce import MAX_ALPHA
from ragmesh.common.v1 import common_pb2
from ragmesh.retriever.v1 import collection_service_pb2 as collections_pb
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from services.retriever.domain import CollectionInfo, Draw, Passage, Query, Retrieval, RetrieverInfo

MAX_DEPTH: Final = 1000
MAX_RANKINGS: Final = 1000
MAX_SEED: Final = 2**63 - 1
MAX_INGEST_PASSAGES: Final = 1000
MAX_DELETED_IDS: Final = 10_000
MAX_DESCRIPTION_BYTES: Final = 1024


def query_of(request: retriever_pb.RetrieveRequest) -> Query:
    """Reads a request to rank.

    Raises:
        InvalidField: a field is outside the bounds of the contract.
    """
    checks.text("query", request.query)
    candidates: Sequence[Passage] | None = None
    match request.WhichOneof("source"):
        case "collection":
            checks.name("collection", request.collection)
        case "candidates":
            checks.passages("candidates.passages", request.candidates.passages)
            candidates = [passage_of(passage) for passage in request.candidates.passages]
        case _:
            raise InvalidField("collection", "either a collection or candidates must be given")
    depth = checks.between("depth", request.depth, 1, MAX_DEPTH) if request.HasField("depth") else None
    k = checks.between("k", request.k, 1, MAX_DEPTH) if request.HasField("k") else None
    return Query(
        text=request.query,
        collection=request.collection,
        candidates=candidates,
        retriever=request.retriever,
        depth=depth,
        k=k,
        draw=_draw_of(request.sampling) if request.HasField("sampling") else None,
        with_inclusion=request.include_inclusion_probabilities,
        stream_id=request.stream_id,
    )


def _draw_of(sampling: common_pb2.Sampling) -> Draw:
    alpha, num_rankings = 1.0, 1
    if sampling.HasField("alpha"):
        alpha = checks.between("sampling.alpha", sampling.alpha, 0, MAX_ALPHA)
    if sampling.HasField("num_rankings"):
        num_rankings = checks.between("sampling.num_rankings", sampling.num_rankings, 1, MAX_RANKINGS)
    seed = checks.between("sampling.seed", sampling.seed, 0, MAX_SEED)
    return Draw(alpha=alpha, num_rankings=num_rankings, seed=seed)


def response_of(retrieval: Retrieval) -> retriever_pb.RetrieveResponse:
    """Writes an answer."""
    response = retriever_pb.RetrieveResponse(
        scores=retrieval.scores.tolist(), index_version=retrieval.version, retriever=retrieval.retriever
    )
    add = response.passages.add
    for passage in retrieval.passages:
        message = add(id=passage.id, title=passage.title, text=passage.text)
        if passage.attributes:  # a map costs as much as the rest
            message.attributes.update(passage.attributes)
    response.rankings.depth = retrieval.rankings.shape[1]
    response.rankings.indices.extend(retrieval.rankings.ravel().tolist())
    if retrieval.log_probabilities is not None:
        response.rankings.log_probabilities.extend(retrieval.log_probabilities.tolist())
    if retrieval.inclusion is not None:
        response.inclusion_probabilities.extend(retrieval.inclusion.tolist())
    return response


def retriever_of(info: RetrieverInfo, *, is_default: bool) -> retriever_pb.Retriever:
    """Writes what a retriever is."""
    return retriever_pb.Retriever(
        name=info.name,
        description=info.description,
        engine=info.engine,
        model=info.model,
        device=info.device,
        is_default=is_default,
    )


def passage_of(passage: common_pb2.Passage) -> Passage:
    """Reads a passage that was checked."""
    return Passage(passage.id, passage.title, passage.text, dict(passage.attributes))


def collection_of(info: CollectionInfo) -> collections_pb.Collection:
    """Writes a collection."""
    updated_at = Timestamp()
    updated_at.FromDatetime(info.updated_at)
    return collections_pb.Collection(
        name=info.name,
        version=info.version,
        num_passages=info.num_passages,
        size_bytes=info.size_bytes,
        encoder=info.encoder,
        updated_at=updated_at,
        description=info.description,
        analyzer=info.analyzer,
    )


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
        """Reads all of a part but its passages.

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
        """Reads a part's passages.

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
        """Checks that the stream is whole.

        Whether its caller ended it or died cannot be told from the end itself.

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
    """Reads the ids of passages to remove, each once.

    Raises:
        InvalidField: none or too many, or one that cannot be an id.
    """
    given = list(ids)
    if not 1 <= len(given) <= MAX_DELETED_IDS:
        raise InvalidField("passage_ids", f"must be 1 to {MAX_DELETED_IDS} ids, has {len(given)}")
    for index, one in enumerate(given):
        checks.text(f"passage_ids[{index}]", one, max_bytes=checks.MAX_ID_BYTES)
    return list(dict.fromkeys(given))


def description_of(text: str) -> str:
    """Reads the description of a collection.

    Raises:
        InvalidField: it is too long.
    """
    size = len(text.encode())
    if size > MAX_DESCRIPTION_BYTES:
        raise InvalidField("description", f"must be at most {MAX_DESCRIPTION_BYTES} bytes, has {size}")
    return text
