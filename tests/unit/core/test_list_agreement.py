"""Agreement of rankings: values by hand, scipy's tau where the items are the same, and what always holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from evenmesh_core.errors import InvalidInput
from evenmesh_core.list_agreement import jaccard, kendall_tau

RANKINGS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("abc", "abc", 3 / 3),
        ("abc", "cba", -3 / 3),
        # pairs ab, ac, bc: the last two are ordered the other way
        ("abc", "cab", (1 - 2) / 3),
        # c is below a and b in the second list too: ab, ac, bc
        ("abc", "ab", (1 + 1 + 1) / 3),
        # ab; ac and bc alike, ad and bd the other way, cd tied in the first
        ("ab", "dabc", (1 + 2 - 2 + 0) / 6),
        # ab is tied in the second list, cd in the first; the four others are the other way
        ("ab", "cd", -4 / 6),
        ("abcd", "efgh", -4 / (2 * 4 - 1)),
        ("", "ab", 0 / 1),
        ("a", "b", -1 / 1),
    ],
)
def test_kendall_tau(first: str, second: str, expected: float) -> None:
    assert kendall_tau(list(first), list(second)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("abc", "cba", 3 / 3), ("abc", "cde", 1 / 5), ("ab", "cd", 0 / 4), ("", "ab", 0 / 2)],
)
def test_jaccard(first: str, second: str, expected: float) -> None:
    assert jaccard(list(first), list(second)) == pytest.approx(expected)


def test_where_nothing_can_be_said() -> None:
    assert math.isnan(kendall_tau([], []))
    assert math.isnan(kendall_tau(["a"], ["a"]))
    assert math.isnan(jaccard([], []))


@pytest.mark.parametrize("measure", [kendall_tau, jaccard])
def test_an_item_twice(measure: object) -> None:
    assert callable(measure)
    with pytest.raises(InvalidInput, match="first"):
        measure(["a", "a"], ["a"])
    with pytest.raises(InvalidInput, match="second"):
        measure(["a"], ["b", "b"])


@given(st.permutations("abcdef"), st.permutations("abcdef"))
def test_tau_of_the_same_items_is_scipys(first: list[str], second: list[str]) -> None:
    expected = kendalltau([first.index(one) for one in "abcdef"], [second.index(one) for one in "abcdef"])
    assert kendall_tau(first, second) == pytest.approx(expected.statistic)


@given(RANKINGS, RANKINGS)
def test_symmetry_and_bounds(first: list[str], second: list[str]) -> None:
    tau, share = kendall_tau(first, second), jaccard(first, second)
    assert math.isnan(tau) or -1 <= tau <= 1
    assert math.isnan(share) or 0 <= share <= 1
    assert kendall_tau(second, first) == pytest.approx(tau, nan_ok=True)
    assert jaccard(second, first) == pytest.approx(share, nan_ok=True)
    if len(first) > 1:
        assert kendall_tau(first, first) == 1
        assert kendall_tau(first, first[::-1]) == -1
