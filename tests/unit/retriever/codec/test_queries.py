"""Queries and answers to domain and back, and every bound of the contract."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evenmesh.common.v1.common_pb2 import Balance, Sampling
from evenmesh.common.v1.common_pb2 import Passage as PassageProto
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1.retriever_service_pb2 import InlineCandidates, RetrieveRequest
from evenmesh.wire.errors import InvalidField
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss, policy_for
from evenmesh_retriever.codec import queries
from evenmesh_retriever.domain import (
    AnyOf,
    Condition,
    Draw,
    Filter,
    NumberRange,
    Passage,
    Query,
    Retrieval,
    TextRange,
)


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
        sizes=[2],
        held_bytes=request.ByteSize() + 512 + 256,
    )


def test_rankings_of_a_whole_collection_are_as_many_as_passages_fit() -> None:
    query = queries.query_of(
        RetrieveRequest(
            query="q", collection="c", k=10, sampling=Sampling(num_rankings=1000), whole_collection=True
        )
    )
    assert (query.whole, query.depth, query.k) == (True, None, 10)
    assert not queries.query_of(RetrieveRequest(query="q", collection="c")).whole


def test_a_target_instead_of_a_dial() -> None:
    sampling = Sampling(relevance_loss=0.0, num_rankings=7)
    query = queries.query_of(RetrieveRequest(query="q", collection="c", sampling=sampling))
    assert query.draw is not None
    assert (query.draw.target, query.draw.num_rankings) == (RelevanceLoss(0.0), 7)


def test_fairness_over_time_is_for_asks_alone() -> None:
    sampling = Sampling(balance=Balance(strength=0.1))
    with pytest.raises(InvalidField, match="for asks alone"):
        queries.query_of(RetrieveRequest(query="q", collection="c", sampling=sampling))


def test_the_policy_of_a_target_is_in_the_reply() -> None:
    policy = policy_for(Disparity(0.7), [3.0, 2.0, 1.0], [1.0, 0.5, 0.0], k=1)
    nothing = np.empty((1, 0), dtype=np.int64)
    found = Retrieval([], np.empty(0), nothing, np.zeros(1), None, "v1", "bm25")
    response = queries.response_of(replace(found, policy=policy))
    assert response.policy.alpha == policy.alpha
    assert response.policy.relevance_kind == response.policy.RELEVANCE_NORMALIZED_SCORE
    assert not queries.response_of(found).HasField("policy")


def test_rankings_without_a_seed_are_drawn_anew_and_say_by_which() -> None:
    request = RetrieveRequest(query="q", collection="c", sampling=Sampling())
    draws = [queries.query_of(request).draw for _ in range(8)]
    assert len({one.seed for one in draws if one is not None}) > 1
    nothing = np.empty((1, 0), dtype=np.int64)
    found = Retrieval([], np.empty(0), nothing, np.zeros(1), None, "v1", "bm25")
    assert draws[0] is not None
    assert queries.response_of(found, draws[0]).seed == draws[0].seed
    request.sampling.seed = 0
    zero = queries.query_of(request).draw
    assert zero is not None
    assert queries.response_of(found, zero).HasField("seed")
    assert zero.seed == 0
    assert not queries.response_of(found, None).HasField("seed")


def test_unset_is_not_zero() -> None:
    query = queries.query_of(RetrieveRequest(query="q", collection="c", sampling=Sampling()))
    assert query.draw is not None
    assert (query.depth, query.k, replace(query.draw, seed=0)) == (None, None, Draw(1.0, 1, 0))
    assert queries.query_of(RetrieveRequest(query="q", collection="c")).draw is None


WITH_TARGET = Sampling(disparity=0.5)
LONG = PassageProto(id="a", text="x" * 65_537)

BAD_QUERIES = [
    ("sampling.disparity", RetrieveRequest(query="q", collection="c", sampling=Sampling(disparity=1.5))),
    (
        "sampling.disparity",
        RetrieveRequest(query="q", collection="c", sampling=Sampling(alpha=1, disparity=0.5)),
    ),
    (
        "whole_collection",
        RetrieveRequest(query="q", collection="c", sampling=WITH_TARGET, whole_collection=True),
    ),
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
    ("whole_collection", RetrieveRequest(query="q", collection="c", whole_collection=True)),
    ("whole_collection", RetrieveRequest(query="q", web="w", sampling=Sampling(), whole_collection=True)),
    (
        "whole_collection",
        RetrieveRequest(
            query="q",
            candidates=candidates(PassageProto(id="a", text="x")),
            sampling=Sampling(),
            whole_collection=True,
        ),
    ),
    (
        "depth",
        RetrieveRequest(query="q", collection="c", sampling=Sampling(), depth=9, whole_collection=True),
    ),
    (
        "sampling.num_rankings",
        RetrieveRequest(
            query="q", collection="c", sampling=Sampling(num_rankings=1000), k=11, whole_collection=True
        ),
    ),
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
            note="half of it",
        )
    )
    assert response.note == "half of it"
    assert [passage.id for passage in response.passages] == ["a", "b"]
    assert dict(response.passages[0].attributes) == {"provider": "p"}
    assert list(response.scores) == [2.0, 1.0]
    assert response.rankings.depth == 2
    assert list(response.rankings.indices) == [0, 1, 1, 0, 0, 1]
    assert list(response.rankings.log_probabilities) == [-0.1, -2.0, -0.1]
    assert list(response.inclusion_probabilities) == [1.0, 1.0]
    assert (response.index_version, response.retriever) == ("000001-0123456789ab", "bm25")


def _filtered(*conditions: retriever_pb.Condition) -> retriever_pb.RetrieveRequest:
    return retriever_pb.RetrieveRequest(
        query="q", collection="c", filter=retriever_pb.Filter(conditions=conditions)
    )


def _text_range(low: str | None, high: str | None) -> retriever_pb.TextRange:
    return retriever_pb.TextRange(**{"from": low, "to": high})


def _number_range(low: float | None, high: float | None) -> retriever_pb.NumberRange:
    return retriever_pb.NumberRange(**{"from": low, "to": high})


def test_a_filter_is_read() -> None:
    read = queries.query_of(
        _filtered(
            retriever_pb.Condition(
                attribute="provider", any_of=retriever_pb.AnyOf(values=["b.org", "a.org"])
            ),
            retriever_pb.Condition(attribute="date", text_range=_text_range("2020-01-01", None)),
            retriever_pb.Condition(attribute="rank", number_range=_number_range(None, -1.5)),
        )
    ).filter
    assert read == Filter(
        (
            Condition("provider", AnyOf(frozenset({"a.org", "b.org"}))),
            Condition("date", TextRange("2020-01-01", None)),
            Condition("rank", NumberRange(None, -1.5)),
        )
    )


def test_no_condition_is_no_filter() -> None:
    assert queries.query_of(retriever_pb.RetrieveRequest(query="q", collection="c")).filter is None
    assert queries.query_of(_filtered()).filter is None


def test_an_empty_bound_is_a_bound() -> None:
    read = queries.query_of(
        _filtered(retriever_pb.Condition(attribute="a", text_range=_text_range("", "")))
    ).filter
    assert read == Filter((Condition("a", TextRange("", "")),))


@pytest.mark.parametrize(
    ("condition", "field"),
    [
        (retriever_pb.Condition(any_of=retriever_pb.AnyOf(values=["a"])), "filter.conditions[0].attribute"),
        (retriever_pb.Condition(attribute="a"), "filter.conditions[0]"),
        (
            retriever_pb.Condition(attribute="a", any_of=retriever_pb.AnyOf()),
            "filter.conditions[0].any_of.values",
        ),
        (
            retriever_pb.Condition(attribute="a", any_of=retriever_pb.AnyOf(values=["x"] * 1001)),
            "filter.conditions[0].any_of.values",
        ),
        (
            retriever_pb.Condition(attribute="a", any_of=retriever_pb.AnyOf(values=["x", "y" * 1025])),
            "filter.conditions[0].any_of.values[1]",
        ),
        (
            retriever_pb.Condition(attribute="a", text_range=_text_range("b", "a")),
            "filter.conditions[0].text_range.from",
        ),
        (
            retriever_pb.Condition(attribute="a", text_range=_text_range(None, "y" * 1025)),
            "filter.conditions[0].text_range.to",
        ),
        (
            retriever_pb.Condition(attribute="a", number_range=_number_range(1.0, 0.5)),
            "filter.conditions[0].number_range.from",
        ),
        (
            retriever_pb.Condition(attribute="a", number_range=_number_range(None, float("nan"))),
            "filter.conditions[0].number_range.to",
        ),
        (
            retriever_pb.Condition(attribute="a", number_range=_number_range(float("inf"), None)),
            "filter.conditions[0].number_range.from",
        ),
    ],
)
def test_bounds_of_a_filter(condition: retriever_pb.Condition, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        queries.query_of(_filtered(condition))
    assert caught.value.field == field


def test_a_filter_has_at_most_sixteen_conditions() -> None:
    condition = retriever_pb.Condition(attribute="a", any_of=retriever_pb.AnyOf(values=["x"]))
    read = queries.query_of(_filtered(*[condition] * 16)).filter
    assert read is not None
    assert len(read.conditions) == 16
    with pytest.raises(InvalidField) as caught:
        queries.query_of(_filtered(*[condition] * 17))
    assert caught.value.field == "filter.conditions"


def test_a_web_source_has_a_name() -> None:
    read = queries.query_of(retriever_pb.RetrieveRequest(query="q", web="searx"))
    assert (read.collection, read.candidates) == ("", None)
    with pytest.raises(InvalidField) as caught:
        queries.query_of(retriever_pb.RetrieveRequest(query="q", web="No Such"))
    assert caught.value.field == "web"
