"""The oracle's rankings: useful items first, and every such ranking alike."""

from collections import Counter
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.oracle import oracle_rankings


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 20), st.integers(0, 2**32))
def test_useful_items_come_first(mask: list[bool], k: int, seed: int) -> None:
    found = oracle_rankings(mask, num_rankings=5, k=k, rng=seed)
    assert found.shape == (5, min(k, len(mask)))
    for row in found:
        useful = [mask[item] for item in row]
        assert sum(useful) == min(sum(mask), len(row))
        assert useful == sorted(useful, reverse=True)
        assert len(set(row.tolist())) == len(row)


def test_every_ranking_is_as_likely_as_any() -> None:
    drawn = oracle_rankings([False, True, False, True], num_rankings=8000, k=4, rng=0)
    seen = Counter(map(tuple, drawn.tolist()))
    assert len(seen) == factorial(2) * factorial(2)
    # Of 8000 draws of four rankings 2000 each are expected, with a standard deviation of 39.
    assert all(abs(times - 2000) < 5 * np.sqrt(8000 * 1 / 4 * 3 / 4) for times in seen.values())


def test_the_first_rankings_do_not_depend_on_how_many_follow() -> None:
    few = oracle_rankings([True, False, True], num_rankings=3, k=2, rng=7)
    many = oracle_rankings([True, False, True], num_rankings=9, k=2, rng=7)
    assert np.array_equal(few, many[:3])


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput):
        oracle_rankings([], num_rankings=1, k=1, rng=0)
    with pytest.raises(InvalidInput):
        oracle_rankings([True], num_rankings=0, k=1, rng=0)
