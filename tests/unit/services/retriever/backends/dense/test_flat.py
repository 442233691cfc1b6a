"""Exact search over vectors."""

import numpy as np
import pytest

from services.retriever.backends.dense.flat import FlatIndex, products, rank
from services.retriever.domain import VectorArray


def unit(rng: np.random.Generator, n: int, d: int = 24) -> VectorArray:
    vectors = rng.standard_normal((n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("n", [1, 5, 20, 300, 1000])
def test_search_is_exact(n: int) -> None:
    rng = np.random.default_rng(n)
    vectors, query = unit(rng, 300), unit(rng, 1)[0]
    exact = vectors.astype(np.float64) @ query.astype(np.float64)
    expected = np.argsort(-exact, kind="stable")[:n]
    found = FlatIndex(vectors).search(query, n)
    assert found.rows.tolist() == expected.tolist()
    np.testing.assert_allclose(found.scores, exact[expected], atol=1e-12)


def test_equal_vectors_come_by_row_even_if_the_scan_fetches_others() -> None:
    rng = np.random.default_rng(1)
    vectors = unit(rng, 400)
    vectors[50:350] = vectors[50]  # 300 equal ones, of which 5 are wanted
    found = FlatIndex(vectors).search(vectors[50], 5)
    assert found.rows.tolist() == [50, 51, 52, 53, 54]
    assert len(set(found.scores.tolist())) == 1


def test_a_score_depends_on_the_two_vectors_alone() -> None:
    rng = np.random.default_rng(2)
    vectors, query = unit(rng, 100), unit(rng, 1)[0]
    alone = [products(vectors[row : row + 1], query)[0] for row in range(100)]
    assert products(vectors, query).tolist() == alone
    found = FlatIndex(vectors).search(query, 10)
    assert found.scores.tolist() == [alone[row] for row in found.rows.tolist()]


def test_rank_takes_all() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    ranked = rank(vectors, np.array([1, 0], dtype=np.float32))
    assert ranked.rows.tolist() == [0, 2, 1]
    assert ranked.scores.tolist() == [1.0, 1.0, 0.0]


def test_no_vectors() -> None:
    found = FlatIndex(np.empty((0, 8), dtype=np.float32)).search(np.zeros(8, dtype=np.float32), 3)
    assert len(found.rows) == len(found.scores) == 0
