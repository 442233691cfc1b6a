"""What nothing beats."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_studies.load.analysis.pareto import pareto_front


def test_a_row_that_is_worse_in_all_is_beaten() -> None:
    assert pareto_front([[1, 2], [2, 1], [2, 2]]) == [0, 1]


def test_equal_rows_beat_each_other_not() -> None:
    assert pareto_front([[1, 1], [1, 1]]) == [0, 1]


def test_what_is_undefined_is_not_on_it_and_beats_none() -> None:
    assert pareto_front([[0, math.nan], [1, 1]]) == [1]


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=20))
def test_every_row_is_on_it_or_beaten_by_one_that_is(rows: list[tuple[int, int, int]]) -> None:
    costs = np.array(rows, dtype=float)
    front = pareto_front(costs)
    assert front
    for place, row in enumerate(costs):
        beaten = any((costs[best] <= row).all() and (costs[best] < row).any() for best in front)
        assert beaten != (place in front)
