"""Translate requests to rank, their responses, and descriptions of retrievers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from evenmesh.common.v1 import common_pb2
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_core.plackett_luce import MAX_ALPHA
from evenmesh_kit.rpc.policies import policy_message, target_of
from evenmesh_retriever.codec.passages import decoded_bytes, passage_of
from evenmesh_retriever.domain import (
    AnyOf,
    Condition,
    Draw,
    Filter,
    NumberRange,
    Passage,
    Query,
    Retrieval,
    RetrieverInfo,
    TextRange,
)
from evenmesh_retriever.engine import DEFAULT_K
from evenmesh_retriever.web import WebSourceInfo

MAX_DEPTH: Final = 1000
MAX_RANKINGS: Final = 1000
MAX_SEED: Final = 2**63 - 1
_DRAWN_SEEDS: Final = 2**32
"""Number of seeds that are drawn from: short enough to be typed."""
MAX_WHOLE_POSITIONS: Final = 10_000
"""Positions of all rankings of a whole collection together: each may bring a passage of its own."""
MAX_CONDITIONS: Final = 16
MAX_VALUES: Final = 1000


def query_of(request: retriever_pb.RetrieveRequest) -> Query:
    """Read a request to rank.

    Raises:
        InvalidField: a field is outside the bounds of the contract.
    """
    checks.text("query", request.query)
    candidates: Sequence[Passage] | None = None
    sizes: Sequence[int] = ()
    match request.WhichOneof("source"):
        case "collection":
            checks.name("collection", request.collection)
        case "candidates":
            checks.passages("candidates.passages", request.candidates.passages)
            candidates = [passage_of(passage) for passage in request.candidates.passages]
            sizes = [passage.num_bytes for passage in candidates]
        case "web":
            checks.name("web", request.web)
        case _:
            raise InvalidField("collection", "a collection, candidates or a web source must be given")
    depth = checks.between("depth", request.depth, 1, MAX_DEPTH) if request.HasField("depth") else None
    k = checks.between("k", request.k, 1, MAX_DEPTH) if request.HasField("k") else None
    draw = _draw_of(request.sampling) if request.HasField("sampling") else None
    if request.whole_collection:
        _check_whole(request, draw, k)
    return Query(
        text=request.query,
        collection=request.collection,
        candidates=candidates,
        retriever=request.retriever,
        depth=depth,
        k=k,
        draw=draw,
        with_inclusion=request.include_inclusion_probabilities,
        stream_id=request.stream_id,
        filter=_filter_of(request.filter) if request.HasField("filter") else None,
        whole=request.whole_collection,
        sizes=sizes,
        held_bytes=decoded_bytes(request, request.candidates.passages),
    )


def _check_whole(request: retriever_pb.RetrieveRequest, draw: Draw | None, k: int | None) -> None:
    if request.WhichOneof("source") != "collection":
        raise InvalidField("whole_collection", "must be false unless a collection is asked")
    if draw is None:
        raise InvalidField("whole_collection", "must be false without sampling: there is nothing to draw")
    if draw.target is not None:
        raise InvalidField(
            "whole_collection", "must be false with a target, which is found for a pool: give sampling.alpha"
        )
    if request.HasField("depth"):
        raise InvalidField("depth", "must be unset with whole_collection: there is no pool")
    positions = draw.num_rankings * (k or DEFAULT_K)
    if positions > MAX_WHOLE_POSITIONS:
        raise InvalidField(
            "sampling.num_rankings",
            f"must be at most {MAX_WHOLE_POSITIONS} / k with whole_collection, which is "
            f"{MAX_WHOLE_POSITIONS // (k or DEFAULT_K)}, got {draw.num_rankings}",
        )


def _filter_of(message: retriever_pb.Filter) -> Filter | None:
    """Read a filter; None where it has no condition, and allows everything."""
    if len(message.conditions) > MAX_CONDITIONS:
        raise InvalidField(
            "filter.conditions", f"must be at most {MAX_CONDITIONS}, has {len(message.conditions)}"
        )
    conditions = tuple(
        _condition_of(f"filter.conditions[{index}]", condition)
        for index, condition in enumerate(message.conditions)
    )
    return Filter(conditions) if conditions else None


def _condition_of(field: str, message: retriever_pb.Condition) -> Condition:
    checks.text(f"{field}.attribute", message.attribute, max_bytes=checks.MAX_ATTRIBUTE_BYTES)
    allowed: AnyOf | TextRange | NumberRange
    match message.WhichOneof("allowed"):
        case "any_of":
            values = message.any_of.values
            if not 1 <= len(values) <= MAX_VALUES:
                raise InvalidField(
                    f"{field}.any_of.values", f"must be 1 to {MAX_VALUES} values, has {len(values)}"
                )
            for index, value in enumerate(values):
                checks.at_most(f"{field}.any_of.values[{index}]", value, checks.MAX_ATTRIBUTE_BYTES)
            allowed = AnyOf(frozenset(values))
        case "text_range":
            text = message.text_range
            low = getattr(text, "from") if text.HasField("from") else None
            high = text.to if text.HasField("to") else None
            checks.at_most(f"{field}.text_range.from", low or "", checks.MAX_ATTRIBUTE_BYTES)
            checks.at_most(f"{field}.text_range.to", high or "", checks.MAX_ATTRIBUTE_BYTES)
            if low is not None and high is not None and low > high:
                raise InvalidField(f"{field}.text_range.from", "must be at most to: no value is between them")
            allowed = TextRange(low, high)
        case "number_range":
            numbers = message.number_range
            least = getattr(numbers, "from") if numbers.HasField("from") else None
            most = numbers.to if numbers.HasField("to") else None
            for end, number in (("from", least), ("to", most)):
                if number is not None:
                    checks.finite(f"{field}.number_range.{end}", number)
            if least is not None and most is not None and least > most:
                raise InvalidField(f"{field}.number_range.from", f"must be at most to, {most}, got {least}")
            allowed = NumberRange(least, most)
        case _:
            raise InvalidField(field, "must say what is allowed: any_of, text_range or number_range")
    return Condition(message.attribute, allowed)


def _draw_of(sampling: common_pb2.Sampling) -> Draw:
    alpha, num_rankings = 1.0, 1
    if sampling.HasField("alpha"):
        alpha = checks.between("sampling.alpha", sampling.alpha, 0, MAX_ALPHA)
    target = target_of("sampling", sampling)
    if sampling.HasField("balance"):
        raise InvalidField("sampling.balance", "is for asks alone: a retrieval knows of no other")
    if sampling.HasField("num_rankings"):
        num_rankings = checks.between("sampling.num_rankings", sampling.num_rankings, 1, MAX_RANKINGS)
    seed = secrets.randbelow(_DRAWN_SEEDS)
    if sampling.HasField("seed"):
        seed = checks.between("sampling.seed", sampling.seed, 0, MAX_SEED)
    return Draw(alpha=alpha, num_rankings=num_rankings, seed=seed, target=target)


def response_of(retrieval: Retrieval, draw: Draw | None = None) -> retriever_pb.RetrieveResponse:
    """Write an answer, and by which seed its rankings were drawn."""
    response = retriever_pb.RetrieveResponse(
        scores=retrieval.scores.tolist(),
        index_version=retrieval.version,
        retriever=retrieval.retriever,
        note=retrieval.note,
        seed=None if draw is None else draw.seed,
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
    if retrieval.as_of is not None:
        response.index_as_of.FromDatetime(retrieval.as_of)
    if retrieval.policy is not None:
        response.policy.CopyFrom(
            policy_message(retrieval.policy, common_pb2.Policy.RELEVANCE_NORMALIZED_SCORE)
        )
    return response


def retriever_of(info: RetrieverInfo, *, is_default: bool) -> retriever_pb.Retriever:
    """Write what a retriever is."""
    return retriever_pb.Retriever(
        name=info.name,
        description=info.description,
        engine=info.engine,
        model=info.model,
        device=info.device,
        is_default=is_default,
    )


def source_of(info: WebSourceInfo) -> retriever_pb.Source:
    """Write what a web source is."""
    return retriever_pb.Source(name=info.name, description=info.description)
