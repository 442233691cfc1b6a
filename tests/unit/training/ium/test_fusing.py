"""How an agent's lists are fused is chosen by what it finds useful, and not by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.arrays import FloatArray
from evenmesh_core.fusion import log_odds_fusion
from evenmesh_core.neighbors import text_vectors
from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_reranker.models.fusions import NONE, Fusions
from evenmesh_training.ium import fusing
from evenmesh_training.ium.fusing import CHOICES, AnsweredQuery, Scored
from evenmesh_training.ium.result_cache import Candidates

WORDS = ("red lamp", "green lamp", "blue bell", "old boat")
PASSAGES = tuple(Passage(name, "", text) for name, text in zip("abcd", WORDS, strict=True))
FOUND = Candidates(PASSAGES, (9.0, 5.0, 3.0, 1.0))
MODEL = {"a": 0.2, "b": 0.4, "c": 0.6, "d": 0.8}
"""The model's order is the reverse of the first stage's."""
SCORED = Scored.of(FOUND, MODEL)


def _judged(agent: str, useful: Mapping[str, float], count: int, shown: int = 1) -> list[AnsweredQuery]:
    return [AnsweredQuery(Agent("t", agent) if agent else Agent(), SCORED, useful, shown)] * count


def test_scores_are_standardized_and_fused_as_an_ask_does() -> None:
    spread = np.std([9.0, 5.0, 3.0, 1.0])
    assert SCORED.first == pytest.approx((np.array([9.0, 5.0, 3.0, 1.0]) - 4.5) / spread)
    how = Fusion(0.5, 0.25, 0.7, -1.0)
    wanted = log_odds_fusion(
        np.array([0.2, 0.4, 0.6, 0.8]),
        SCORED.first,
        0.5,
        neighbors=0.25,
        vectors=text_vectors([f" {one}" for one in WORDS]),
        slope=0.7,
        intercept=-1.0,
    )
    found = SCORED.scores(how)
    assert found == pytest.approx(dict(zip("abcd", wanted.tolist(), strict=True)))
    assert list(found) == [SCORED.ids[at] for at in SCORED.order(how)]
    assert SCORED.scores(NONE) == {"d": 0.8, "c": 0.6, "b": 0.4, "a": 0.2}


def test_a_first_stage_without_numbers_says_nothing() -> None:
    scored = Scored.of(Candidates(PASSAGES, (float("inf"), 5.0, 3.0, 1.0)), MODEL)
    assert scored.order(Fusion(4.0)) == [3, 2, 1, 0]


def test_a_model_alone_that_is_all_but_sure_still_has_an_order() -> None:
    scored = Scored.of(FOUND, {"a": 1 - 1e-7, "b": 1 - 1e-9, "c": 1e-9, "d": 1e-7})
    assert scored.order(NONE) == [1, 0, 3, 2]
    assert list(scored.scores(NONE)) == ["b", "a", "d", "c"]


def test_only_what_some_choice_shows_is_judged() -> None:
    assert fusing.needed(SCORED, 1, NONE) == ["a", "b", "d"]  # never c
    assert fusing.needed(SCORED, 2, NONE) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        (1, 0.5),  # d
        (2, (0.5 + 1.0 / np.log2(3)) / (1 + 1 / np.log2(3))),  # and c
        (
            9,
            (0.5 + 1.0 / np.log2(3)) / (1 + 1 / np.log2(3) + 1 / np.log2(4) + 1 / np.log2(5)),
        ),  # all there are
    ],
)
def test_what_is_shown_is_worth_its_utilities_discounted_by_rank(shown: int, value: float) -> None:
    (one,) = _judged("x", {"d": 0.5, "c": 1.0}, 1, shown)
    assert one.value(NONE) == pytest.approx(value)


def _differences(*rows: Sequence[float]) -> FloatArray:
    return np.array(rows)


def test_a_choice_must_gain_more_than_a_standard_error() -> None:
    # Of four queries: the second choice gains 1/4 with a standard error of 1/4, the third 1/2 with 0.289.
    values = _differences([0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0])
    assert fusing.best([values]) == 2
    assert fusing.best([values[:, :2]]) == 0
    assert fusing.best([values[:1]]) == 0  # one query alone shows nothing


def test_agents_count_alike_however_many_queries_they_have() -> None:
    many = _differences(*[[0.0, 0.1]] * 100)
    few = _differences(*[[0.3, 0.0]] * 4)
    assert fusing.best([many]) == 1
    assert fusing.best([many, few]) == 0
    assert fusing.best([few[:, ::-1]]) == 1


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 6))
def test_what_is_chosen_is_worth_no_less_to_the_queries_that_choose(
    seed: int, queries: int, choices: int
) -> None:
    values = np.random.default_rng(seed).random((queries, choices))
    chosen = fusing.best([values])
    assert values[:, chosen].mean() >= values[:, 0].mean()


def test_agents_of_opposite_tastes_get_opposite_weights() -> None:
    judged = [*_judged("first", {"a": 1.0, "d": 0.0}, 10), *_judged("model", {"a": 0.0, "d": 1.0}, 10)]
    for before in (Fusion(0.25), Fusion(4.0)):
        found = fusing.choose(judged, Fusions(before), together=False)
        assert SCORED.order(found.of(Agent("t", "first")))[0] == 0
        assert SCORED.order(found.of(Agent("t", "model")))[0] == 3
        # Nobody else's lists change.
        assert found.of(Agent("t", "other")) == found.of(Agent()) == before
        assert len(found.own) == 1  # the other one has what it had


def test_others_may_have_what_is_best_for_all() -> None:
    judged = [*_judged("x", {"a": 1.0}, 10), *_judged("y", {"a": 1.0}, 10), *_judged("z", {"d": 1.0}, 10)]
    found = fusing.choose(judged, Fusions(), together=True)
    assert SCORED.order(found.others)[0] == 0
    assert found.of(Agent("t", "x")) == found.others
    assert list(found.own) == [("t", "z")]


def test_who_learns_nothing_keeps_all_numbers() -> None:
    before = Fusions(Fusion(2.0, 1.0, 0.6, -3.0))
    assert fusing.choose([], before, together=True) == before
    alike = dict.fromkeys("abcd", 0.5)
    assert fusing.choose(_judged("x", alike, 20), before, together=True) == before
    assert fusing.choose(_judged("x", {}, 20), before, together=True) == before  # it refused all of them


def test_who_has_its_own_begins_with_it_and_who_is_absent_keeps_it() -> None:
    absent, mine = ("t", "absent"), ("t", "x")
    before = Fusions(Fusion(2.0), {absent: Fusion(1.0), mine: Fusion(4.0, slope=0.5)})
    alike = fusing.choose(_judged("x", {"a": 1.0}, 10), before, together=False)
    assert alike == before  # a comes first by what it has
    changed = fusing.choose(_judged("x", {"d": 1.0}, 10), before, together=False)
    assert changed.own == {absent: Fusion(1.0), mine: NONE}
    # What others get is no reason to lose what one has.
    judged = [*_judged("x", {"a": 1.0}, 10), *_judged("y", {"d": 1.0}, 40), *_judged("z", {"d": 1.0}, 40)]
    found = fusing.choose(judged, before, together=True)
    assert found.others == NONE
    assert found.own == {absent: Fusion(1.0), mine: Fusion(4.0, slope=0.5)}


def test_without_ids_all_agents_have_one_fusion() -> None:
    found = fusing.choose(_judged("", {"d": 1.0}, 10), Fusions(Fusion(4.0)), together=False)
    assert not found.own
    assert SCORED.order(found.others)[0] == 3


def test_chosen_weights_are_calibrated_by_what_was_judged() -> None:
    useful = {"a": 1.0, "b": 0.0, "d": 0.0}
    (chosen,) = fusing.choose(_judged("x", useful, 40), Fusions(), together=False).own.values()
    scores = SCORED.scores(chosen)
    assert scores["a"] > max(scores["b"], scores["d"])
    # The most likely intercept gives what was judged its mean utility, but for Platt's one more of each kind.
    assert scores["a"] + scores["b"] + scores["d"] == pytest.approx(1.0, abs=0.05)


def test_a_model_alone_is_not_calibrated() -> None:
    assert fusing.choose(_judged("x", {"d": 1.0}, 40), Fusions(Fusion(4.0)), together=False).own == {
        ("t", "x"): NONE
    }


def test_what_is_tried_can_be_served() -> None:
    assert len(set(CHOICES)) == len(CHOICES) == 26
    for one in CHOICES:
        assert Fusions.parse(Fusions(one).dumped()).others == one
