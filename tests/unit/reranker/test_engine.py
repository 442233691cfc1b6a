"""Choosing a reranker and ordering by its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import NotFound
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_reranker.backends.unranked import Unranked
from evenmesh_reranker.domain import Agent, Best, FirstStage, Fusion, Passage, Scores
from evenmesh_reranker.engine import Reranking as Engine
from evenmesh_reranker.ports import Reranker

POOL = ComputePool(1, "test")


class Fixed:
    """Gives the scores it was made with, and remembers for whom."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = tuple(scores)
        self.agents: list[Agent] = []

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        self.agents.append(agent)
        at_most = 1.0 if best is not None and any(map(math.isnan, self.scores)) else None
        return Scores(self.scores, "v1", at_most)


class Reranking(Engine):
    """With threads of its own."""

    def __init__(self, rerankers: Mapping[str, Reranker], default: str) -> None:
        super().__init__(rerankers, default, POOL)


def _passages(*ids: str) -> list[Passage]:
    return [Passage(id_, "", "text") for id_ in ids]


async def test_best_first_and_ties_by_ascending_id() -> None:
    engine = Reranking({"fixed": Fixed([0.5, 0.9, 0.5, 0.1])}, "fixed")
    ranking = await engine.rerank("q", _passages("b", "z", "a", "c"), Agent(), top_k=3)
    assert ranking.order == (1, 2, 0)
    assert ranking.scores == (0.5, 0.9, 0.5, 0.1)
    assert (ranking.model_version, ranking.reranker) == ("v1", "fixed")


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=20), st.data())
async def test_the_order_is_that_of_a_full_sort(scores: list[float], data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, len(scores)))
    passages = _passages(*(f"{at:02}" for at in data.draw(st.permutations(range(len(scores))))))
    ranking = await Reranking({"f": Fixed(scores)}, "f").rerank("q", passages, Agent(), top_k=top_k)
    expected = sorted(range(len(scores)), key=lambda at: (-scores[at], passages[at].id))
    assert list(ranking.order) == expected[:top_k]


async def test_the_default_unless_one_is_named() -> None:
    engine = Reranking({"a": Fixed([0.1]), "none": Unranked()}, "a")
    assert (await engine.rerank("q", _passages("x"), Agent(), top_k=1)).reranker == "a"
    named = await engine.rerank("q", _passages("x", "y", "z"), Agent(), top_k=3, reranker="none")
    assert (named.reranker, named.scores, named.order) == ("none", (1.0, 1 / 2, 1 / 3), (0, 1, 2))
    with pytest.raises(NotFound, match="no reranker 'b'; there are a, none") as caught:
        await engine.rerank("q", _passages("x"), Agent(), top_k=1, reranker="b")
    assert caught.value.field == "reranker"


async def test_the_agent_reaches_the_reranker() -> None:
    fixed = Fixed([0.1])
    agent = Agent("qa-open", "t5-small-fid")
    await Reranking({"f": fixed}, "f").rerank("q", _passages("x"), agent, top_k=1)
    assert fixed.agents == [agent]


@pytest.mark.parametrize("scores", [[0.5, 0.5], [float("nan")]])
async def test_a_broken_reranker_is_no_fault_of_the_caller(scores: list[float]) -> None:
    with pytest.raises(RuntimeError, match="scores for 1 passages"):
        await Reranking({"f": Fixed(scores)}, "f").rerank("q", _passages("x"), Agent(), top_k=1)


async def test_what_has_no_score_is_not_among_the_best() -> None:
    nan = float("nan")
    engine = Reranking({"fixed": Fixed([0.5, nan, 0.9, nan])}, "fixed")
    ranking = await engine.rerank("q", _passages("b", "a", "c", "d"), Agent(), top_k=2, tolerance=0.0)
    assert (ranking.order, ranking.unscored_at_most) == ((2, 0), 1.0)
    with pytest.raises(RuntimeError, match="4 scores for 4 passages, or no numbers"):
        await engine.rerank("q", _passages("b", "a", "c", "d"), Agent(), top_k=3, tolerance=0.0)
    with pytest.raises(RuntimeError, match="or no numbers"):
        await engine.rerank("q", _passages("b", "a", "c", "d"), Agent(), top_k=2)


def test_an_unknown_default_is_refused() -> None:
    with pytest.raises(ValueError, match="the default 'b' is not one of a"):
        Reranking({"a": Unranked()}, "b")


class Advised(Fixed):
    """A reranker whose model asks for a fusion."""

    fusion: Fusion | None = None

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        return replace(await super().score(query, passages, agent, best=best), fusion=self.fusion)


def _advised(fusion: Fusion | None) -> Reranking:
    advised = Advised([0.5, 0.8])
    advised.fusion = fusion
    return Reranking({"f": advised}, "f")


FIRST = FirstStage((3.0, 1.0), 2.0, 0.5)
"""Two and minus two standard deviations from the mean."""


async def test_scores_are_fused_by_the_models_weight() -> None:
    """Log-odds log 1 + 1 · 2 and log 4 - 1 · 2; the sum is calibrated by 2x - 1."""
    engine = _advised(Fusion(1.0, slope=2.0, intercept=-1.0))
    ranking = await engine.rerank("q", _passages("a", "b"), Agent(), top_k=2, first=FIRST)
    expected = [1 / (1 + math.exp(-x)) for x in (2 * 2 - 1, 2 * (math.log(4) - 2) - 1)]
    assert ranking.scores == pytest.approx(expected)
    assert (ranking.order, ranking.fusion) == ((0, 1), 1.0)


async def test_a_request_sets_the_weight() -> None:
    engine = _advised(Fusion(1.0))
    alone = await engine.rerank("q", _passages("a", "b"), Agent(), top_k=2, first=FIRST, fusion=0.0)
    assert (alone.scores, alone.order, alone.fusion) == ((0.5, 0.8), (1, 0), 0.0)
    half = await engine.rerank("q", _passages("a", "b"), Agent(), top_k=2, first=FIRST, fusion=0.5)
    assert half.fusion == 0.5
    assert half.scores == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1 - math.log(4)))])


@pytest.mark.parametrize("first", [None, FIRST])
async def test_what_asks_for_no_fusion_is_not_fused(first: FirstStage | None) -> None:
    for engine in (_advised(None), _advised(Fusion(0.0))):
        ranking = await engine.rerank("q", _passages("a", "b"), Agent(), top_k=2, first=first)
        assert (ranking.scores, ranking.fusion) == ((0.5, 0.8), 0.0)


async def test_a_tolerance_is_of_the_rerankers_own_scores() -> None:
    engine = _advised(Fusion(1.0))
    passages = _passages("a", "b")
    ranking = await engine.rerank("q", passages, Agent(), top_k=1, first=FIRST, tolerance=0.0)
    assert (ranking.order, ranking.fusion) == ((1,), 0.0)


async def test_equal_scores_of_the_first_stage_say_nothing() -> None:
    first = FirstStage((1.0, 1.0), 1.0, 0.0)
    ranking = await _advised(Fusion(2.0)).rerank("q", _passages("a", "b"), Agent(), top_k=2, first=first)
    assert ranking.scores == pytest.approx((0.5, 0.8))


async def test_passages_support_similar_ones() -> None:
    """a and b say the same, c says something else: with equal log-odds, b supports a, and nothing c.

    The supports are (1 + 0) / 2, 1/2 and 0, whose mean is 1/3 and deviation √2/6: √2/2, √2/2 and −√2.
    """
    passages = [Passage("a", "", "red fox"), Passage("b", "Red", "fox"), Passage("c", "", "blue whale")]
    advised = Advised([0.5, 0.5, 0.5])
    advised.fusion = Fusion(1.0, neighbors=0.5)
    first = FirstStage((1.0, 1.0, 1.0), 1.0, 0.0)
    ranking = await Reranking({"f": advised}, "f").rerank("q", passages, Agent(), top_k=3, first=first)
    expected = [1 / (1 + math.exp(-0.5 * x)) for x in (math.sqrt(0.5), math.sqrt(0.5), -math.sqrt(2))]
    assert ranking.scores == pytest.approx(expected, abs=1e-5)
    assert ranking.order == (0, 1, 2)
    alone = await Reranking({"f": advised}, "f").rerank(
        "q", passages, Agent(), top_k=3, first=first, fusion=0.0
    )
    assert alone.scores == (0.5, 0.5, 0.5)
