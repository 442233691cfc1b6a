"""Similarities between two answers that need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import normalize_answer


def containment_em(left: str, right: str) -> float:
    """Return 1.0 if one normalised answer holds the other as a run of whole words, else 0.0.

    An answer without words after normalisation holds and is held by such answers only.

    Source: the EM similarity of Li et al. 2024, §4.1; normalisation as :func:`normalize_answer`.

    Raises:
        InvalidInput: something that is not a text.
    """
    return normalized_containment(normalize_answer(left), normalize_answer(right))


def normalized_containment(first: str, second: str) -> float:
    """Return :func:`containment_em` of answers that are normalised already."""
    if not first or not second:
        return float(first == second)
    return float(f" {first} " in f" {second} " or f" {second} " in f" {first} ")


def similarity_matrix(answers: Sequence[str], similarity: Callable[[str, str], float]) -> FloatArray:
    """Compare each answer with each: matrix [M, M] of similarity(answer m, answer n), as :func:`vote` takes
    it.

    The diagonal, which no vote reads, is 1.

    Raises:
        InvalidInput: no answers.
    """
    if len(answers) == 0:
        raise InvalidInput("answers", answers, "at least one answer")
    matrix = np.ones((len(answers), len(answers)))
    for m, left in enumerate(answers):
        for n, right in enumerate(answers):
            if m != n:
                matrix[m, n] = similarity(left, right)
    return matrix
