"""Postings: counting."""

import pytest

from evenmesh_retriever.backends.bm25.postings import build


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


def test_arrays_cannot_be_changed() -> None:
    postings = build([["a"]])
    with pytest.raises(ValueError, match="read-only"):
        postings.counts[0] = 2
