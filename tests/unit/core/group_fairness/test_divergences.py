import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import divergence, jsd, nmd, rnod

property_test = settings(derandomize=True, deadline=None, max_examples=50)


def distributions(groups):
    parts = st.lists(st.integers(0, 20), min_size=groups, max_size=groups).filter(any)
    return parts.map(lambda counts: np.array(counts) / sum(counts))


pairs = st.integers(2, 6).flatmap(lambda groups: st.tuples(distributions(groups), distributions(groups)))


def test_rnod_by_hand():
    # p − p* = (1/2, −1/2, 0); DW_i = Σ_j |i − j| (p_j − p*_j)²
    achieved, gold = [1, 0, 0], [1 / 2, 1 / 2, 0]
    dw_1 = 0 * 1 / 4 + 1 * 1 / 4 + 2 * 0
    dw_2 = 1 * 1 / 4 + 0 * 1 / 4 + 1 * 0
    # the third group is not wanted, so it does not count
    assert rnod(achieved, gold) == pytest.approx(math.sqrt((dw_1 + dw_2) / 2 / (3 - 1)))


def test_rnod_is_the_mean_over_the_groups_of_the_target_and_linear_in_their_distance():
    # p − p* = (−1/2, 1/4, 1/4); only the first group is wanted
    dw_1 = 0 * 1 / 4 + 1 * 1 / 16 + 2 * 1 / 16
    assert rnod([1 / 2, 1 / 4, 1 / 4], [1, 0, 0]) == pytest.approx(math.sqrt(dw_1 / (3 - 1)))
    # the other way round all three are wanted
    dw_2, dw_3 = 1 * 1 / 4 + 0 * 1 / 16 + 1 * 1 / 16, 2 * 1 / 4 + 1 * 1 / 16 + 0 * 1 / 16
    expected = math.sqrt((dw_1 + dw_2 + dw_3) / 3 / (3 - 1))
    assert rnod([1, 0, 0], [1 / 2, 1 / 4, 1 / 4]) == pytest.approx(expected)


def test_nmd_by_hand():
    # cumulative: (1, 1, 1) against (1/2, 1/2, 1)
    assert nmd([1, 0, 0], [1 / 2, 0, 1 / 2]) == pytest.approx((1 / 2 + 1 / 2 + 0) / (3 - 1))


def test_jsd_by_hand():
    # middle (3/4, 1/4); to base 2, without a root
    expected = (
        1 * math.log2(1 / (3 / 4))
        + 1 / 2 * math.log2((1 / 2) / (3 / 4))
        + 1 / 2 * math.log2((1 / 2) / (1 / 4))
    ) / 2
    assert jsd([1, 0], [1 / 2, 1 / 2]) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["rnod", "nmd", "jsd"])
def test_opposite_ends_are_as_far_as_can_be(name):
    assert divergence(name, [1, 0, 0], [0, 0, 1]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["rnod", "nmd"])
def test_ordinal_divergences_grow_with_the_distance_of_groups(name):
    near, far = divergence(name, [0, 1, 0], [1, 0, 0]), divergence(name, [0, 0, 1], [1, 0, 0])
    assert near < far
    assert jsd([0, 1, 0], [1, 0, 0]) == jsd([0, 0, 1], [1, 0, 0]) == 1.0


@property_test
@given(pairs)
def test_all_lie_in_zero_to_one_and_vanish_only_at_the_target(pair):
    achieved, gold = pair
    for name in ("rnod", "nmd", "jsd"):
        assert 0.0 <= divergence(name, achieved, gold) <= 1.0
        assert divergence(name, gold, gold) == 0.0
    if np.abs(achieved - gold).max() > 1e-9:
        assert nmd(achieved, gold) > 0
        assert jsd(achieved, gold) > 0
    assert jsd(achieved, gold) == pytest.approx(jsd(gold, achieved))
    assert nmd(achieved, gold) == pytest.approx(nmd(gold, achieved))


@pytest.mark.parametrize(
    ("achieved", "gold", "complaint"),
    [
        ([0.5, 0.4], [0.5, 0.5], r"sum\(achieved\) is 0.9"),
        ([0.5, 0.5], [0.7, 0.5], r"sum\(gold\) is 1.2"),
        ([1.5, -0.5], [0.5, 0.5], r"achieved\[0\] is 1.5"),
        ([1.0], [1.0], r"len\(achieved\) is 1; allowed: at least 2 groups"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], r"len\(achieved\) is 2; allowed: 3"),
        ([math.nan, 1.0], [0.5, 0.5], r"achieved\[0\] is nan"),
    ],
)
def test_bad_distributions_are_refused(achieved, gold, complaint):
    for measure in (rnod, nmd, jsd):
        with pytest.raises(InvalidInput, match=complaint):
            measure(achieved, gold)


def test_an_unknown_divergence_is_refused():
    with pytest.raises(InvalidInput, match="divergence is 'kl'; allowed: 'rnod', 'nmd' or 'jsd'"):
        divergence("kl", [0.5, 0.5], [0.5, 0.5])
