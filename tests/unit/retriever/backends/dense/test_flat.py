"""Exact search over vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.dense.flat import FlatIndex, rank
from evenmesh_retriever.backends.dense.rescoring import products
from evenmesh_retriever.domain import VectorArray


def unit(rng: np.random.Generator, n: int, d: int = 24) -> VectorArray:
    vectors = rng.standard_normal((n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def exact(vectors: VectorArray, query: VectorArray, rows: np.ndarray, n: int) -> list[int]:
    """Rows by a product in float64, equal ones by row."""
    scores = vectors.astype(np.float64) @ query.astype(np.float64)
    return sorted(rows.tolist(), key=lambda row: (-scores[row], row))[:n]


@pytest.mark.parametrize("n", [1, 5, 20, 300, 1000])
@pytest.mark.parametrize("batch", [1, 3, 200])  # the last is handed to BLAS
def test_search_is_exact(n: int, batch: int) -> None:
    rng = np.random.default_rng(n)
    vectors, queries = unit(rng, 300), unit(rng, batch)
    rows, scores = FlatIndex(vectors).search(queries, n)
    assert rows.shape == scores.shape == (batch, min(n, 300))
    for query, found, values in zip(queries, rows, scores, strict=True):
        expected = exact(vectors, query, np.arange(300), n)
        assert found.tolist() == expected
        np.testing.assert_allclose(values, (vectors.astype(np.float64) @ query)[expected], atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("n", [1, 20, 400])
def test_only_what_is_allowed_is_found(share: float, n: int) -> None:
    rng = np.random.default_rng(5)
    vectors, queries = unit(rng, 400), unit(rng, 3)
    allowed = rng.random(400) < share
    rows, scores = FlatIndex(vectors).search(queries, n, allowed=allowed)
    assert rows.shape == scores.shape == (3, min(n, allowed.sum()))
    for query, found in zip(queries, rows, strict=True):
        assert found.tolist() == exact(vectors, query, np.flatnonzero(allowed), n)


def test_equal_vectors_come_by_row_even_if_the_scan_fetches_others() -> None:
    rng = np.random.default_rng(1)
    vectors = unit(rng, 400)
    vectors[50:350] = vectors[50]  # 300 equal ones, of which 5 are wanted
    rows, scores = FlatIndex(vectors).search(vectors[50:51], 5)
    assert rows.tolist() == [[50, 51, 52, 53, 54]]
    assert len(set(scores[0].tolist())) == 1
    allowed = np.ones(400, dtype=np.bool_)
    allowed[50:52] = False
    rows, _ = FlatIndex(vectors).search(vectors[50:51], 5, allowed=allowed)
    assert rows.tolist() == [[52, 53, 54, 55, 56]]


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_score_depends_on_the_two_vectors_alone(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, queries = unit(rng, 40), unit(rng, 4)
    rows, scores = FlatIndex(vectors).search(queries, n)
    for query, found, values in zip(queries, rows, scores, strict=True):
        assert values.tolist() == [products(vectors[row : row + 1], query)[0] for row in found.tolist()]


def test_rank_takes_all() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    ranked = rank(vectors, np.array([1, 0], dtype=np.float32))
    assert ranked.rows.tolist() == [0, 2, 1]
    assert ranked.scores.tolist() == [1.0, 1.0, 0.0]


def test_no_vectors_and_no_queries() -> None:
    rows, scores = FlatIndex(np.empty((0, 8), np.float32)).search(np.zeros((2, 8), np.float32), 3)
    assert rows.shape == scores.shape == (2, 0)
    rows, scores = FlatIndex(np.eye(8, dtype=np.float32)).search(np.zeros((0, 8), np.float32), 3)
    assert len(rows) == len(scores) == 0
