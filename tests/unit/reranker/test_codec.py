"""Every bound of the reranker's proto, at its edge and past it."""

from __future__ import annotations

import math

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_reranker import codec
from evenmesh_reranker.domain import Agent, FirstStage, Passage, Ranking


def _passages(count: int) -> list[common_pb2.Passage]:
    return [common_pb2.Passage(id=str(at), title="t", text="x") for at in range(count)]


def _decode(**fields: object) -> codec.RerankCall:
    message = pb.RerankRequest(**{"query": "q", "passages": _passages(3), **fields})  # type: ignore[arg-type]
    return codec.decode_request(message, "acme")


def test_defaults() -> None:
    call = _decode()
    assert call == codec.RerankCall(
        "q", tuple(Passage(str(at), "t", "x") for at in range(3)), Agent("", "", "acme"), 3, ""
    )


def test_all_fields() -> None:
    agent = common_pb2.Agent(task_id="t" * 128, model_id="m")
    call = _decode(agent=agent, top_k=2, reranker="none", passages=_passages(1000))
    assert (call.agent, call.top_k, call.reranker) == (Agent("t" * 128, "m", "acme"), 2, "none")
    assert [_decode(tolerance=tolerance).tolerance for tolerance in (0.0, 1.0)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": "\t"}, "query"),
        ({"query": "x" * 8193}, "query"),
        ({"passages": []}, "passages"),
        ({"passages": _passages(1001)}, "passages"),
        ({"passages": _passages(2) + _passages(1)}, "passages[2].id"),
        ({"passages": [common_pb2.Passage(id="a")]}, "passages[0].text"),
        ({"passages": [common_pb2.Passage(id="x" * 257, text="x")]}, "passages[0].id"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 4}, "top_k"),
        ({"agent": common_pb2.Agent(task_id="x" * 129)}, "agent.task_id"),
        ({"agent": common_pb2.Agent(model_id="é" * 65)}, "agent.model_id"),
        ({"reranker": "x" * 257}, "reranker"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"tolerance": 1.1}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
    ],
)
def test_out_of_bounds(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        _decode(**fields)
    assert caught.value.field == field


def _first(*scores: float, **fields: float) -> pb.FirstStage:
    return pb.FirstStage(scores=scores, **fields)


def test_scores_of_a_first_stage() -> None:
    """Of 1, 2, 3: mean 2, variance 2/3."""
    call = _decode(first_stage=_first(1, 2, 3), fusion=0.5)
    assert call.fusion == 0.5
    assert call.first is not None
    assert (call.first.scores, call.first.mean) == ((1.0, 2.0, 3.0), 2.0)
    assert call.first.deviation == pytest.approx(math.sqrt(2 / 3))
    equal = _decode(first_stage=_first(2.3, 2.3, 2.3)).first
    assert equal is not None
    assert equal.deviation == 0.0  # NumPy's is that of rounding
    pool = _decode(first_stage=_first(1, 2, 3, mean=-1.0, deviation=0.0)).first
    assert pool == FirstStage((1.0, 2.0, 3.0), -1.0, 0.0)
    assert _decode(fusion=0.0, tolerance=0.5).fusion == 0.0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"first_stage": _first(1, 2)}, "first_stage.scores"),
        ({"first_stage": _first()}, "first_stage.scores"),
        ({"first_stage": _first(1, 2, math.nan)}, "first_stage.scores"),
        ({"first_stage": _first(1, 2, -math.inf)}, "first_stage.scores"),
        ({"first_stage": _first(1, 2, 1e200)}, "first_stage.scores"),
        ({"first_stage": _first(1, 2, 3, mean=math.nan)}, "first_stage.mean"),
        ({"first_stage": _first(1, 2, 3, deviation=-1.0)}, "first_stage.deviation"),
        ({"first_stage": _first(1, 2, 3), "fusion": -0.1}, "fusion"),
        ({"first_stage": _first(1, 2, 3), "fusion": 10.1}, "fusion"),
        ({"first_stage": _first(1, 2, 3), "fusion": math.nan}, "fusion"),
        ({"first_stage": _first(1, 2, 3), "fusion": 1.0, "tolerance": 0.0}, "fusion"),
        ({"fusion": 1.0}, "fusion"),
    ],
)
def test_what_cannot_be_fused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        _decode(**fields)
    assert caught.value.field == field


def test_a_ranking_on_the_wire() -> None:
    assert codec.encode_ranking(Ranking((0.25, 0.75), (1, 0), "v", "rankrag")) == pb.RerankResponse(
        scores=[0.25, 0.75], order=[1, 0], model_version="v", reranker="rankrag"
    )


def test_passages_without_a_score_are_named() -> None:
    response = codec.encode_ranking(Ranking((0.25, math.nan, 1.0), (2,), "v", "rankrag", 0.5))
    assert (response.scores[0], response.scores[2]) == (0.25, 1.0)
    assert math.isnan(response.scores[1])
    assert (list(response.unscored), response.unscored_at_most, list(response.order)) == ([1], 0.5, [2])
