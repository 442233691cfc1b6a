"""Values of orders and the test that keeps worse candidates from serving."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evenmesh_training.online.comparison import compare, enough_queries, fewest_queries, order_value
from evenmesh_training.online.settings import OnlineSettings

FloatArray = NDArray[np.float64]
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


def test_only_the_shown_passages_count() -> None:
    """The best two are worth 0.5 and 0 by place; the ideal two are 1 and 0.5."""
    value = order_value([0.9, 0.8, 0.1], [0.5, 0.0, 1.0], shown=2)
    assert value == pytest.approx(0.5 / (1.0 + 0.5 / math.log2(3)))


@given(SCORES)
def test_no_order_is_better_than_that_of_the_usefulness(pairs: list[tuple[float, float]]) -> None:
    scores, usefulness = zip(*pairs, strict=True)
    value = order_value(scores, usefulness)
    assert math.isnan(value) or 0 <= value <= 1 + 1e-12
    best = order_value(usefulness, usefulness)
    assert math.isnan(best) or best == pytest.approx(1.0)


def test_what_is_worse_is_found_and_what_is_alike_or_better_serves() -> None:
    rng = np.random.default_rng(0)
    served = rng.uniform(0.5, 0.8, 60)
    worse = compare(served, served - rng.uniform(0, 0.2, 60), level=0.05)
    assert worse.worse
    assert not worse.promotes
    assert worse.p_worse < 0.01
    better = compare(served, served + rng.uniform(0, 0.1, 60), level=0.05)
    assert better.better
    assert better.promotes
    assert better.p_worse > 0.9
    alike = compare(served, served, level=0.05)
    assert (alike.promotes, alike.p_worse, alike.served) == (True, 1.0, alike.candidate)
    assert (alike.better, alike.low) == (False, 0.0)
    noise = compare(served, served + rng.permutation(np.linspace(-0.1, 0.1, 60)), level=0.05)
    assert (noise.better, noise.promotes) == (False, True)


def test_a_candidate_that_nothing_shows_to_be_worse_does_not_serve_for_that() -> None:
    """Of 45 queries the candidate gains 0.4 on half and loses as much on the others: low is −0.1 by hand."""
    enough = enough_queries(0.05)
    differences = np.array([0.4, -0.4] * 22 + [0.0])
    found = compare(np.full(enough, 0.5), 0.5 + differences, level=0.05)
    assert not found.worse
    assert not found.promotes
    # Student's t of 44 degrees of freedom: 1.680; standard deviation 0.4 · √(44 / 44), of the mean that over √45.
    assert found.low == pytest.approx(-1.680 * 0.4 / math.sqrt(45), abs=1e-4)
    assert compare(np.full(enough, 0.5), 0.5 + differences, level=0.05, margin=0.2).promotes


def test_few_queries_suffice_to_promote_what_is_better_and_not_what_is_alike() -> None:
    served = np.full(6, 0.5)
    assert compare(served, served + np.array([0.2, 0.3] * 3), level=0.05).promotes
    alike = compare(served, served, level=0.05)
    assert (alike.decides, alike.not_inferior, alike.promotes) == (True, False, False)


def test_enough_queries_show_a_rare_total_loss() -> None:
    """0.95^44 = 0.105 and 0.95^45 = 0.0994; 0.6^4 = 0.13 and 0.6^5 = 0.078."""
    assert (enough_queries(0.05), enough_queries(0.4)) == (45, 5)


def test_undefined_values_are_left_out_and_too_few_decide_nothing() -> None:
    # Four signs agree by chance with probability 1/16 > 0.05, five with 1/32 < 0.05.
    assert (fewest_queries(0.05), fewest_queries(0.5), fewest_queries(0.01)) == (5, 1, 7)
    nan = math.nan
    found = compare([0.5, nan, 0.5, 0.5, 0.5], [0.9, nan, 0.9, 0.9, 0.9], level=0.05)
    assert (found.queries, found.decides, found.promotes) == (4, False, False)
    assert (found.served, found.candidate) == (pytest.approx(0.5), pytest.approx(0.9))
    nothing = compare([nan], [nan], level=0.05)
    assert (nothing.queries, nothing.promotes) == (0, False)
    assert math.isnan(nothing.served)


# --- what the gate promotes, in simulation

HELD_BACK = round(OnlineSettings().held_back * OnlineSettings().queries)
TRIALS = 2000


def _scattered(rng: np.random.Generator, mean: float, queries: int) -> FloatArray:
    """Differences of nDCG that scatter by 0.18, as in the published studies."""
    return rng.normal(mean, 0.18, queries)


def _rare(rng: np.random.Generator, mean: float, queries: int) -> FloatArray:
    """Most orders stay; each that changes loses or gains 0.8, the most that 32 judged passages allow."""
    return np.where(rng.random(queries) < abs(mean) / 0.8, math.copysign(0.8, mean), 0.0)


def _reordered(rng: np.random.Generator, mean: float, queries: int) -> FloatArray:
    """Half of the orders stay; the others change either way, by 0.25 around twice the mean."""
    return np.where(rng.random(queries) < 0.5, 0.0, rng.normal(2 * mean, 0.25, queries))


def promoted(draw: Callable[..., FloatArray], mean: float, queries: int, trials: int = TRIALS) -> float:
    """Return the share of candidates that the gate promotes, whose true difference is ``mean``."""
    rng = np.random.default_rng(7)
    served = np.zeros(queries)
    found = [compare(served, draw(rng, mean, queries), level=0.05).promotes for _ in range(trials)]
    return sum(found) / trials


@pytest.mark.parametrize("draw", [_scattered, _rare, _reordered])
@pytest.mark.parametrize("queries", [5, 16, HELD_BACK])
def test_a_model_truly_worse_by_the_margin_is_promoted_in_at_most_one_case_in_ten(
    draw: Callable[..., FloatArray], queries: int
) -> None:
    """The gate that only kept out what was proven worse promoted it in 73, 69 and 29 %."""
    assert promoted(draw, -0.05, queries) <= 0.10


@pytest.mark.parametrize(
    ("draw", "mean", "least"),
    [(_scattered, 0.05, 0.95), (_scattered, 0.03, 0.90), (_scattered, 0.0, 0.60), (_rare, 0.05, 0.99)],
)
def test_what_is_better_is_still_promoted_with_the_default_b(
    draw: Callable[..., FloatArray], mean: float, least: float
) -> None:
    assert promoted(draw, mean, HELD_BACK) >= least
