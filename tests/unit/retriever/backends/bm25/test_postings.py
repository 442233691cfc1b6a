"""Postings: counting, and taking over what was counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.bm25.postings import Postings, build, merge

documents = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), max_size=12)
ARRAYS = ("lengths", "row_bounds", "row_terms", "row_counts", "bounds", "rows", "counts")


def assert_same(left: Postings, right: Postings) -> None:
    assert list(left.terms.items()) == list(right.terms.items())
    for field in ARRAYS:
        one, other = getattr(left, field), getattr(right, field)
        assert one.dtype == other.dtype, field
        np.testing.assert_array_equal(one, other, err_msg=field)


def test_counts_by_passage_and_by_term() -> None:
    postings = build([["b", "a", "b"], [], ["c", "a"]])
    assert postings.terms == {"b": 0, "a": 1, "c": 2}  # as first seen
    assert postings.lengths.tolist() == [3, 0, 2]
    assert postings.row_bounds.tolist() == [0, 2, 2, 4]
    assert postings.row_terms.tolist() == [0, 1, 2, 1]
    assert postings.row_counts.tolist() == [2, 1, 1, 1]
    assert postings.bounds.tolist() == [0, 1, 3, 4]
    assert postings.rows.tolist() == [0, 0, 2, 2]
    assert postings.counts.tolist() == [2, 1, 1, 1]
    assert postings.frequencies.tolist() == [1, 2, 1]
    assert postings.numbers(["a", "?", "a", "c"]).tolist() == [1, 1, 2]


@given(documents, documents, st.data())
def test_merging_equals_building_afresh(
    old: list[list[str]], new: list[list[str]], data: st.DataObject
) -> None:
    rows = st.permutations(range(len(old) + len(new)))
    order = data.draw(rows)
    sources = order[: data.draw(st.integers(0, len(order)))]
    everything = old + new
    merged = merge(build(old), iter(new), np.array(sources, dtype=np.int64))
    # New passages are all taken over in use; here too, so that no term is left that no passage has.
    assert_same(merged, build([everything[source] for source in sources]))


def test_arrays_cannot_be_changed() -> None:
    postings = build([["a"]])
    with pytest.raises(ValueError, match="read-only"):
        postings.counts[0] = 2
