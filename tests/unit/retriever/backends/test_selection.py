"""Picking the best of many scores."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.bm25 import kernel
from evenmesh_retriever.backends.bm25.kernel import Impacts, QueryTokens
from evenmesh_retriever.backends.selection import best


@given(st.lists(st.sampled_from([-1.5, 0.0, 0.25, 1.0, 3.0]), max_size=60), st.integers(1, 70))
def test_best_is_a_stable_sort_cut_short(values: list[float], n: int) -> None:
    scores = np.array(values)
    expected = sorted(range(len(values)), key=lambda row: (-values[row], row))[:n]
    # One term whose impacts are the scores.
    every = Impacts(np.arange(len(values), dtype=np.int32), scores.astype(np.float32), len(values))
    asked = QueryTokens(np.array([0]), np.array([len(values)]), np.array([1.0]))
    for found in (best(scores, n), kernel.search(every, asked, n)):
        assert found.rows.tolist() == expected
        assert found.scores.tolist() == [values[row] for row in expected]
