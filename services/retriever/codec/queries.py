"""Requests to rank and their answers, and what retrievers are: protos to domain and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.plackett_luce import MAX_ALPHA
from ragmesh.common.v1 import common_pb2
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from services.retriever.codec.passages import passage_of
from services.retriever.domain import Draw, Passage, Query, Retrieval, RetrieverInfo

MAX_DEPTH: Final = 1000
MAX_RANKINGS: Final = 1000
MAX_SEED: Final = 2**63 - 1


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
