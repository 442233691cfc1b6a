"""Embedding cosine with the model that comes along."""

from __future__ import annotations

import numpy as np
import pytest

from evenmesh_lab.similarities import Models, load
from evenmesh_lab.similarities.similarity import Similarity
from evenmesh_models import MINILM, minilm

_ANSWERS = ["Paris", "the city of Paris", "a banana", "Paris"]


@pytest.fixture(scope="module")
def cosine() -> Similarity:
    """With the bundled model."""
    return load("embedding_cosine", Models())


def test_meaning_is_nearer_than_fruit(cosine: Similarity) -> None:
    matrix = cosine.matrix(_ANSWERS)
    assert matrix[0, 1] > 0.8 > 0.5 > matrix[0, 2]
    assert matrix[0, 3] == 1.0
    assert np.array_equal(matrix, matrix.T)
    assert (cosine.low, cosine.high) == (-1.0, 1.0)


def test_it_is_the_cosine_of_the_models_own_vectors(cosine: Similarity) -> None:
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(minilm())).encode(_ANSWERS[:3]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert cosine.matrix(_ANSWERS[:3]) == pytest.approx(vectors @ vectors.T, abs=1e-6)


def test_one_new_answer_costs_its_own_row_and_agrees_with_the_matrix(cosine: Similarity) -> None:
    row = cosine.pairs([(answer, _ANSWERS[2]) for answer in _ANSWERS[:2]])
    assert row == pytest.approx(cosine.matrix(_ANSWERS)[2, :2], abs=1e-6)


def test_the_bundled_model_has_a_name(cosine: Similarity) -> None:
    named = load("embedding_cosine", Models(embedding=MINILM))
    assert np.array_equal(named.matrix(_ANSWERS), cosine.matrix(_ANSWERS))


def test_an_empty_answer_is_an_answer(cosine: Similarity) -> None:
    value = cosine.pairs([("", "Paris")])[0]
    assert -1 <= value < 0.5
