"""Questions of no agent: what ships, and what it measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_training.ium.gate import Gate, GateQuestion


class Fixed:
    """Parameters that give passages scores by id, and ask to be fused with a weight, by default 1."""

    def __init__(self, weight: float = 1.0, **scores: float) -> None:
        self._weight = weight
        self._scores = scores

    def fusion(self, agent: Agent) -> Fusion:
        return Fusion(self._weight)

    def scores(self, query: str, passages: Sequence[Passage], agent: Agent) -> list[float]:
        return [self._scores[one.id] for one in passages]


A, B, C = (Passage(name, "", name) for name in "abc")
GATE = Gate((GateQuestion("q", (A, B, C), (1.0, 0.0, -1.0), frozenset({"b"})),))


@pytest.mark.parametrize(
    ("b", "rank"),
    [
        (0.5, 2),  # a has log-odds 0 + 1, b 0 + 0
        (0.8, 1),  # b has log 4 = 1.39
        (0.1, 3),  # c has 0 - 1, b log 1/9 = -2.2
    ],
)
def test_the_value_is_of_the_fused_order(b: float, rank: int) -> None:
    (value,) = GATE.values(Fixed(a=0.5, b=b, c=0.5), Agent())
    assert value == pytest.approx(1 / math.log2(rank + 1))


def test_a_model_alone_that_is_all_but_sure_still_has_an_order() -> None:
    sure = Fixed(weight=0.0, a=1 - 1e-7, b=1 - 1e-9, c=0.5)
    assert GATE.values(sure, Agent()) == [1.0]


def test_the_bundled_gate_has_candidates_that_answer() -> None:
    questions = Gate.bundled()._questions
    assert len(questions) >= 30
    for one in questions:
        assert len(one.passages) == len(one.first) == 20
        assert list(one.first) == sorted(one.first, reverse=True)
        assert one.relevant
    reached = [one for one in questions if one.relevant & {passage.id for passage in one.passages}]
    assert len(reached) > 0.8 * len(questions)
