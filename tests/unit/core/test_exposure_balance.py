"""Exposure over time: what groups are owed, and what the controller adds to scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.exposure_balance import ExposureBalance, balanced_weights, fading, merit_shares
from evenmesh_core.plackett_luce import log_weights

property_test = settings(derandomize=True, deadline=None, max_examples=60)
GAINS = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=12)


def test_what_is_owed_by_hand():
    # Two queries. A deserves 0.6 and 0.5 and is shown 1 and 1; B deserves 0.4 and 0 and is shown nothing.
    balance = ExposureBalance().added(["A", "B"], [0.6, 0.4], [1.0, 0.0]).added(["A"], [0.5], [1.0])
    assert list(balance.names) == ["A", "B"]
    np.testing.assert_allclose(balance.owed, [-0.9, 0.4])
    # Half of a score range per context: A loses 0.45, which the limit makes 0.3; B gains 0.2.
    assert balance.offsets(strength=0.5, limit=0.3) == pytest.approx({"A": -0.3, "B": 0.2})


def test_a_name_that_repeats_is_added_up():
    balance = ExposureBalance().added(["A", "A", "B"], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0])
    np.testing.assert_allclose(balance.target, [0.5, 0.5])
    np.testing.assert_allclose(balance.exposure, [1.0, 0.0])


def test_half_is_left_after_a_half_life():
    np.testing.assert_allclose(fading(np.array([0.0, 1.0, 2.0, 3.0]), 1.0), [1, 0.5, 0.25, 0.125])


def test_merit_counts_copies_once_by_hand():
    # The second and third say the same: the more relevant counts. 0.4 and 0.6 of 1.
    np.testing.assert_allclose(merit_shares([0.4, 0.3, 0.6], [0, 1, 1]), [0.4, 0.0, 0.6])
    # Of equals the first counts.
    np.testing.assert_allclose(merit_shares([0.5, 0.5], [7, 7]), [1.0, 0.0])
    np.testing.assert_allclose(merit_shares([0.0, 0.0], [0, 1]), [0.0, 0.0])


def test_the_scores_by_hand():
    # 10, 5 and 0 are 2, 1.5 and 1; the last gains 0.4 and the first loses 0.2.
    weights = balanced_weights([10.0, 5.0, 0.0], [-0.2, 0.0, 0.4], 2.0)
    np.testing.assert_allclose(weights, [1.8**2, 1.5**2, 1.4**2])


@property_test
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10), st.floats(0, 100))
def test_nothing_owed_changes_nothing(scores, alpha):
    assert ExposureBalance().offsets(strength=1.0, limit=1.0) == {}
    same = balanced_weights(scores, np.zeros(len(scores)), alpha)
    assert same.tolist() == log_weights(scores, alpha).tolist()


@property_test
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=8),
       st.floats(0, 10), st.floats(0, 1))  # fmt: skip
def test_influence_is_bounded_and_has_the_sign_of_what_is_owed(rows, strength, limit):
    names = [f"g{place}" for place in range(len(rows))]
    target, exposure = zip(*rows, strict=True)
    balance = ExposureBalance().added(names, target, exposure)
    offsets = balance.offsets(strength=strength, limit=limit)
    owed = dict(zip(names, balance.owed.tolist(), strict=True))
    for name, offset in offsets.items():
        assert abs(offset) <= limit
        assert np.sign(offset) == np.sign(owed[name])


@property_test
@given(st.lists(st.floats(0, 1), min_size=2, max_size=10, unique=True), st.floats(0, 0.5), st.data())
def test_items_that_are_further_apart_than_twice_the_limit_keep_their_order(scores, limit, data):
    offsets = data.draw(
        st.lists(st.floats(-limit, limit), min_size=len(scores), max_size=len(scores)), label="offsets"
    )
    normalized = log_weights(scores, 1.0)
    moved = balanced_weights(scores, offsets, 3.0)
    for one in range(len(scores)):
        for other in range(len(scores)):
            if normalized[one] - normalized[other] > 2 * limit + 1e-9:
                assert moved[one] > moved[other]


@property_test
@given(GAINS, st.data())
def test_copies_gain_a_provider_nothing(gains, data):
    # Item 0 is repeated by its own provider, at most as relevant as itself.
    copies = data.draw(
        st.lists(st.floats(0, 1).map(lambda part: part * gains[0]), max_size=20), label="copies"
    )
    alone = merit_shares(gains, range(len(gains)))
    flooded = merit_shares([*gains, *copies], [*range(len(gains)), *[0] * len(copies)])
    np.testing.assert_allclose(flooded[: len(gains)], alone)
    assert not flooded[len(gains) :].any()
    # What the copies are shown counts as given, so that the provider is owed less by it, never more.
    names = ["mine"] * (1 + len(copies))
    given_ = np.full(len(names), 0.1)
    balance = ExposureBalance().added(names, [flooded[0], *flooded[len(gains) :]], given_)
    single = ExposureBalance().added(["mine"], [alone[0]], [0.1])
    assert balance.owed[0] <= single.owed[0] + 1e-12


@property_test
@given(GAINS)
def test_merit_shares_sum_to_one_context(gains):
    shares = merit_shares(gains, range(len(gains)))
    assert shares.sum() == pytest.approx(1.0 if max(gains) > 0 else 0.0)


def test_the_controller_closes_a_gap():
    # A is a little better than B in every query, so that without the controller only A is shown.
    balance = ExposureBalance()
    shown = []
    for _ in range(400):
        offsets = balance.offsets(strength=0.1, limit=0.5)
        added = [offsets.get("A", 0.0), offsets.get("B", 0.0), 0.0]
        best = int(np.argmax(balanced_weights([0.6, 0.5, 0.1], added, 1.0)))
        shown.append(best)
        balance = balance.added(["A", "B"], [6 / 11, 5 / 11], [float(best == 0), float(best == 1)])
    assert abs(np.mean(np.array(shown) == 0) - 6 / 11) < 0.02
    assert 2 not in shown


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: ExposureBalance().offsets(strength=11.0, limit=0.1), "strength"),
        (lambda: ExposureBalance().offsets(strength=1.0, limit=1.1), "limit"),
        (lambda: fading(1.0, 0.0), "half_life"),
        (lambda: ExposureBalance().added(["A"], [1.0, 2.0], [1.0]), "target"),
        (lambda: ExposureBalance().added(["A"], [-1.0], [1.0]), "target"),
        (lambda: merit_shares([1.0], [1, 2]), "copies"),
        (lambda: balanced_weights([1.0, 2.0], [2.0, 0.0], 1.0), "offsets"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(call, where):
    with pytest.raises(InvalidInput, match=where):
        call()
