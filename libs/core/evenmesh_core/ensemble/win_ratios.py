"""Win ratios of retrievers, and the accuracy of a perfect vote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray, indicators
from evenmesh_core.errors import InvalidInput

_MOST_RETRIEVERS = 20


@dataclass(frozen=True)
class WinRatios:
    """Relative win ratios of M retrievers."""

    matrix: FloatArray
    """Matrix [M, M]: RWR(i, j), the share of the questions j gets wrong that i gets right (equation 1), so
    row beats column; 0 on the diagonal; ``nan`` down the column of a retriever that is never wrong."""
    mrwr: FloatArray
    """Vector [M]: mean RWR(i, j) over the other j where it is defined (equation 2)."""
    mrlr: FloatArray
    """Vector [M]: mean RWR(j, i) over the other j where it is defined (equation 3); 0 where i is right
    whenever any other is."""
    mrwr_undefined: IntArray
    """Vector [M]: number of other j left out of ``mrwr`` as 0 / 0."""
    mrlr_undefined: IntArray
    """Vector [M]: number of other j left out of ``mrlr`` as 0 / 0."""


def relative_win_ratio(correct: ArrayLike) -> WinRatios:
    """Compare retrievers by the questions one answers and another does not.

    Args:
        correct: matrix [M, N] of 0 and 1 (or booleans): whether retriever m leads to a right answer to
            question n.

    Source: Li et al. 2024, §2.1, equations 1 to 3.

    Raises:
        InvalidInput: not a matrix of 0 and 1, or fewer than 2 retrievers.
    """
    right = indicators("correct", correct, ndim=2)
    if len(right) < 2:
        raise InvalidInput("correct.shape", right.shape, "at least 2 retrievers")
    matrix = win_matrix(right, ~right)
    apart = ~np.eye(len(matrix), dtype=np.bool_)
    wins = np.where(apart, matrix, np.nan)
    mrwr, mrwr_undefined = _defined_means(wins)
    mrlr, mrlr_undefined = _defined_means(wins.T)
    return WinRatios(matrix, mrwr, mrlr, mrwr_undefined, mrlr_undefined)


@dataclass(frozen=True)
class UpperBounds:
    """Accuracy of ensembles under a vote that finds the right answer whenever a retriever has it."""

    by_size: tuple[FloatArray, ...]
    """For each pool size s from 1 to M: the accuracy of each of the C(M, s) pools, ascending."""
    mean: FloatArray
    """Vector [M]: mean accuracy over the pools of each size; never falls with the size."""


def upper_bound(correct: ArrayLike) -> UpperBounds:
    """Return the accuracy that a perfect vote would reach, for every pool of retrievers.

    Args:
        correct: matrix [M, N] of 0 and 1 (or booleans), M up to 20, as :func:`relative_win_ratio`.

    Source: Li et al. 2024, §4 and figure 5.

    Raises:
        InvalidInput: not a matrix of 0 and 1, or more than 20 retrievers (whose pools are too many to list).
    """
    right = indicators("correct", correct, ndim=2)
    retrievers, questions = right.shape
    if retrievers > _MOST_RETRIEVERS:
        raise InvalidInput("correct.shape", right.shape, f"at most {_MOST_RETRIEVERS} retrievers")
    # A pool, and the set of retrievers wrong on a question, are numbers whose bits are retrievers. A pool
    # fails on the questions whose wrong set holds it: the sums over supersets, taken one retriever at a time.
    bits = 1 << np.arange(retrievers)
    failed = np.bincount(bits @ ~right, minlength=1 << retrievers)
    for bit in bits:
        halves = failed.reshape(-1, 2, bit)
        halves[:, 0] += halves[:, 1]
    sizes = np.array([int(pool).bit_count() for pool in range(1 << retrievers)])
    by_size = tuple(np.sort(1.0 - failed[sizes == size] / questions) for size in range(1, retrievers + 1))
    return UpperBounds(by_size, np.array([pools.mean() for pools in by_size]))


def win_matrix(won: BoolArray, lost: BoolArray, counted: BoolArray | None = None) -> FloatArray:
    """Return the share of the questions lost by column j that row i won, of those counted for the pair.

    Args:
        won: matrix [M, N].
        lost: matrix [M, N].
        counted: matrix [M, N]; a question counts for a pair if it does for both; None counts all.
    """
    one = won.astype(np.float64)
    other = lost.astype(np.float64)
    both = np.ones_like(one) if counted is None else counted.astype(np.float64)
    wins = (one * both) @ (other * both).T
    losses = both @ (other * both).T
    ratios: FloatArray = np.divide(wins, losses, out=np.full_like(wins, np.nan), where=losses > 0)
    return ratios


def _defined_means(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return each row's mean over its defined entries, and the number of undefined ones off the diagonal."""
    defined = ~np.isnan(rows)
    counts = defined.sum(axis=1)
    sums = np.where(defined, rows, 0.0).sum(axis=1)
    means: FloatArray = np.divide(sums, counts, out=np.full(len(rows), np.nan), where=counts > 0)
    return means, len(rows) - 1 - counts
