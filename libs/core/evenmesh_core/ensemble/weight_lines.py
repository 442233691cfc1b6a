"""Exact search of a vote's correctness along one retriever's weight.

The score of an answer is its retriever's weight times its pooled similarity. While one weight moves and the
others rest, each question's winner changes at one weight at most, where the moving answer's score meets the
best of the others. Between two such weights the mean correctness is constant, so looking once into every gap,
and once at every such weight, finds the maximum of the whole line.

Source: the line search of Och 2003, §4, for a linear model whose error count is piecewise constant.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenmesh_core.arrays import BoolArray, FloatArray


class Line(NamedTuple):
    """What the other answers do while one retriever's weight moves; all vectors [Q], one element a question.

    A question that the mover wins whatever its weight has the correctness of the mover in ``rest_correct``.
    """

    pooled: FloatArray
    """Pooled similarity of the mover's answer."""
    correct: FloatArray
    """Correctness of the mover's answer."""
    rest: FloatArray
    """Best score of the others."""
    rest_correct: FloatArray
    """Correctness of the answer with that score."""
    wins_ties: BoolArray
    """Whether the mover comes before that answer, and so wins where both scores are equal."""


class Best(NamedTuple):
    """The best of a line."""

    correctness: float
    """Mean correctness, in [0, 1]."""
    weight: float
    """The mover's weight that has it."""


def best_weights(line: Line, low: float, high: float) -> tuple[Best, Best | None]:
    """Find the weight in (low, high] with the largest mean correctness.

    Takes O(Q · log Q) time.

    Args:
        line: the mover and the others.
        low: lower end, excluded; below ``high``.
        high: upper end, included.

    Returns:
        The best gap between two changes, by its middle (the widest of the best, because a weight far from
        changes depends least on the training questions); and a weight exactly at a change, where it beats
        every gap, else None.
    """
    moves = line.pooled != 0
    meets = line.rest[moves] / line.pooled[moves]
    rising = line.pooled[moves] > 0
    gains = (line.correct - line.rest_correct)[moves]
    ties = line.wins_ties[moves]
    # A mover without similarity has score 0 at any weight.
    still = ~moves & ((line.rest < 0) | ((line.rest == 0) & line.wins_ties))
    base = float(line.rest_correct.sum() + (line.correct - line.rest_correct)[still].sum())
    base += float(gains[~rising].sum())  # far below all changes, falling movers win

    inside = np.unique(meets[(meets > low) & (meets < high)])
    edges = np.concatenate([[low], inside, [high]])
    gaps = (edges[:-1] + edges[1:]) / 2
    # A rising mover gains its question past the change, a falling one loses it; the tie goes by order.
    order = np.argsort(meets, kind="stable")
    steps = np.concatenate([[0.0], np.cumsum(np.where(rising, gains, -gains)[order])])
    in_gaps = base + steps[np.searchsorted(meets[order], gaps)]
    top = in_gaps.max()
    level = in_gaps >= top - 1e-9
    widest = int(np.argmax(np.where(level, np.diff(edges), -1.0)))
    count = len(line.pooled)
    gap = Best(float(top) / count, float(gaps[widest]))

    points = np.append(inside, high)
    # At its change a question is the mover's if the mover wins ties, whichever side it is won on.
    early = ties == rising
    exactly = base + _passed(meets[early], rising[early], gains[early], points, "right")
    exactly += _passed(meets[~early], rising[~early], gains[~early], points, "left")
    best = int(np.argmax(exactly))
    if exactly[best] <= top + 1e-9:
        return gap, None
    return gap, Best(float(exactly[best]) / count, float(points[best]))


def _passed(meets: FloatArray, rising: BoolArray, gains: FloatArray, at: FloatArray, side: str) -> FloatArray:
    """Return what the changes up to each weight sum to; ``side`` "right" counts those at it."""
    order = np.argsort(meets, kind="stable")
    steps = np.concatenate([[0.0], np.cumsum(np.where(rising, gains, -gains)[order])])
    passed: FloatArray = steps[np.searchsorted(meets[order], at, side="right" if side == "right" else "left")]
    return passed
