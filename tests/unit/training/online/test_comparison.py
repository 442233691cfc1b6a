"""Values of orders and the test that keeps worse candidates from serving."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_training.online.comparison import compare, fewest_queries, order_value

SCORES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


def test_an_order_is_valued_by_what_it_has_first() -> None:
    ideal = 1 / math.log2(2) + 0.5 / math.log2(3)
    assert order_value([0.9, 0.5, 0.1], [1, 0.5, 0]) == pytest.approx(1.0)
    assert order_value([0.1, 0.5, 0.9], [1, 0.5, 0]) == pytest.approx(
        (0.5 / math.log2(3) + 1 / math.log2(4)) / ideal
    )


@pytest.mark.parametrize("usefulness", [[], [1.0], [0.5, 0.5], [0, 0, 0]])
def test_where_every_order_is_as_good_it_has_no_value(usefulness: list[float]) -> None:
    assert math.isnan(order_value(range(len(usefulness)), usefulness))


@given(SCORES)
def test_no_order_is_better_than_that_of_the_usefulness(pairs: list[tuple[float, float]]) -> None:
    scores, usefulness = zip(*pairs, strict=True)
    value = order_value(scores, usefulness)
    assert math.isnan(value) or 0 <= value <= 1 + 1e-12
    best = order_value(usefulness, usefulness)
    assert math.isnan(best) or best == pytest.approx(1.0)


def test_what_is_worse_is_found_and_what_is_alike_or_better_is_not() -> None:
    rng = np.random.default_rng(0)
    served = rng.uniform(0.5, 0.8, 40)
    worse = compare(served, served - rng.uniform(0, 0.1, 40), level=0.05, seed=0)
    assert worse.worse
    assert not worse.promotes
    assert worse.p_worse < 0.01
    better = compare(served, served + rng.uniform(0, 0.1, 40), level=0.05, seed=0)
    assert better.promotes
    assert better.p_worse > 0.9
    alike = compare(served, served, level=0.05, seed=0)
    assert (alike.promotes, alike.p_worse, alike.served) == (True, 1.0, alike.candidate)
    noise = compare(served, served + rng.permutation(np.linspace(-0.1, 0.1, 40)), level=0.05, seed=0)
    assert noise.promotes


def test_undefined_values_are_left_out_and_too_few_decide_nothing() -> None:
    # Four signs agree by chance with probability 1/16 > 0.05, five with 1/32 < 0.05.
    assert (fewest_queries(0.05), fewest_queries(0.5), fewest_queries(0.01)) == (5, 1, 7)
    nan = math.nan
    found = compare([0.5, nan, 0.5, 0.5, 0.5], [0.9, nan, 0.9, 0.9, 0.9], level=0.05, seed=0)
    assert (found.queries, found.decides, found.promotes) == (4, False, False)
    assert (found.served, found.candidate) == (pytest.approx(0.5), pytest.approx(0.9))
    nothing = compare([nan], [nan], level=0.05, seed=0)
    assert (nothing.queries, nothing.promotes) == (0, False)
    assert math.isnan(nothing.served)
