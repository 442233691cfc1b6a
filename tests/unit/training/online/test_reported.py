"""What feedback says of lists that were not shown: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_training.ium.fusing import Scored
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online.reported import ReportedQuery, with_gains

ALONE, FIRST = Fusion(0.0), Fusion(10.0)
PASSAGES = tuple(Passage(name, "", name) for name in "abcd")
SECOND = 1 / math.log2(3)
"""The discount of the second place."""


def _query(utilities: dict[str, float], *, fused: bool = True) -> ReportedQuery:
    """The first stage's order is a, b, c, d, and the model's is d, c, b, a."""
    found = Candidates(PASSAGES, (4.0, 3.0, 2.0, 1.0))
    scores = dict(zip("abcd", (0.2, 0.4, 0.6, 0.8), strict=True))
    return ReportedQuery(Agent(), Scored.of(found, scores), utilities, fused, np.full(4, np.nan))


def test_what_another_list_shows_counts_as_useless_until_it_is_judged() -> None:
    [one] = with_gains([_query({"d": 1.0, "c": 0.5})], ALONE, judged_alone=False)
    np.testing.assert_allclose(one.gains, [0.0, 0.0, 0.5, 1.0])
    assert one.value(ALONE) == 1.0
    assert one.value(FIRST) == 0.0  # it shows a and b
    # With a judged, too, three are compared, and the first stage shows a, b and c.
    [more] = with_gains([_query({"d": 0.0, "c": 0.5, "a": 1.0})], ALONE, judged_alone=False)
    # b is shown now, by the model, and counts the mean of what was judged.
    np.testing.assert_allclose(more.gains, [1.0, 0.5, 0.5, 0.0])
    best = 1.0 + SECOND * 0.5 + 0.25
    assert more.value(FIRST) == pytest.approx(1.0)
    assert more.value(ALONE) == pytest.approx((0.0 + SECOND * 0.5 + 0.25) / best)


def test_the_mean_is_of_all_that_the_agent_judged() -> None:
    _, other = with_gains(
        [_query({"d": 1.0, "c": 1.0}), _query({"d": 0.25, "a": 0.75})], ALONE, judged_alone=False
    )
    # c is shown second and was not judged.
    np.testing.assert_allclose(other.gains, [0.75, 0.0, 0.75, 0.25])


def test_no_list_is_worth_less_than_what_is_said_of_it() -> None:
    """Whatever the passages that were not judged are worth, the other list has at least this much of it."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        truth = dict(zip("abcd", rng.random(4).tolist(), strict=True))
        shown = {id_: truth[id_] for id_ in "dc"}
        [one] = with_gains([_query(shown)], ALONE, judged_alone=False)
        for fusion in (ALONE, FIRST, Fusion(1.0), Fusion(0.5)):
            best = one.order(fusion)[:2]
            said = one.gains[best] @ [1.0, SECOND]
            true = np.array([truth["abcd"[at]] for at in best]) @ [1.0, SECOND]
            assert said <= true + 1e-12


def test_parameters_are_compared_by_the_order_of_what_was_judged() -> None:
    [one] = with_gains([_query({"d": 1.0, "b": 0.5})], ALONE, judged_alone=True)
    assert one.value(ALONE) == 1.0
    best = 1.0 + SECOND * 0.5
    assert one.value(FIRST) == pytest.approx(
        (0.5 + SECOND * 1.0) / best
    )  # b before d, whatever else is shown


def test_where_all_orders_are_alike_there_is_no_value() -> None:
    assert math.isnan(_query({"a": 1.0}).value(ALONE))  # before gains are known
    [useless] = with_gains([_query({"d": 0.0, "c": 0.0})], ALONE, judged_alone=False)
    assert math.isnan(useless.value(FIRST))
    [all_useful] = with_gains([_query(dict.fromkeys("abcd", 1.0))], ALONE, judged_alone=False)
    assert math.isnan(all_useful.value(FIRST))


def test_without_a_first_stage_the_model_alone_orders() -> None:
    [one] = with_gains([_query({"d": 1.0, "c": 0.5}, fused=False)], ALONE, judged_alone=False)
    assert one.order(FIRST) == one.order(ALONE) == [3, 2, 1, 0]
    assert one.value(FIRST) == 1.0
    assert with_gains([], ALONE, judged_alone=False) == []
