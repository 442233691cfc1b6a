"""Impacts by term against a dense product."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.splade.postings import ImpactPostings, SparseVector

VOCABULARY = 12
# Eighths: sums of their products are exact, so a dense product is an oracle to the last bit.
weights = st.integers(0, 16).map(lambda n: n / 8)
matrices = st.lists(st.lists(weights, min_size=VOCABULARY, max_size=VOCABULARY), max_size=30)


def vector(row: list[float]) -> SparseVector:
    dense = np.array(row, dtype=np.float32)
    terms = np.flatnonzero(dense)
    return SparseVector(terms, dense[terms])


@given(matrices, st.lists(weights, min_size=VOCABULARY, max_size=VOCABULARY), st.integers(1, 40), st.data())
def test_scores_are_those_of_a_dense_product(
    matrix: list[list[float]], query: list[float], n: int, data: st.DataObject
) -> None:
    postings = ImpactPostings.build(map(vector, matrix), VOCABULARY)
    expected = np.array(matrix).reshape(-1, VOCABULARY) @ np.array(query)
    size = len(matrix)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=np.bool_)
    np.testing.assert_array_equal(postings.scores(vector(query)), expected)
    for mask in (None, allowed):
        rows = range(size) if mask is None else np.flatnonzero(mask).tolist()
        found = postings.search(vector(query), n, mask)
        best = sorted(rows, key=lambda row: (-expected[row], row))[:n]
        assert found.rows.tolist() == best
        assert found.scores.tolist() == expected[best].tolist()


def test_a_file_holds_what_was_built(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.random((70_000, VOCABULARY)) * (rng.random((70_000, VOCABULARY)) < 0.1)).astype(np.float32)
    built = ImpactPostings.build((vector(row.tolist()) for row in matrix), VOCABULARY)
    built.save(tmp_path)
    opened = ImpactPostings.open(tmp_path)
    assert opened.size == 70_000
    assert not opened.impacts.flags.writeable
    query = vector(rng.random(VOCABULARY).tolist())
    expected = matrix.astype(np.float64)[:, query.terms] @ query.weights.astype(np.float64)
    np.testing.assert_allclose(opened.scores(query), expected, rtol=1e-14)
    assert opened.search(query, 50).rows.tolist() == built.search(query, 50).rows.tolist()
    (tmp_path / "impacts.rows.npy").unlink()
    with pytest.raises(OSError, match=r"impacts\.rows\.npy"):
        ImpactPostings.open(tmp_path)
