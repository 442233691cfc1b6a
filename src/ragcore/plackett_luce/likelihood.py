"""Probabilities of given rankings under a Plackett–Luce policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ragcore.arrays import FloatArray, IntArray, float_array, rankings_array
from ragcore.plackett_luce.mass import build_frames


def log_probability(log_weights: ArrayLike, rankings: ArrayLike) -> FloatArray:
    """Give the log-probability that each ranking, or beginning of a ranking, is drawn.

    Works backwards from the mass that no ranking's item holds, adding one item's weight at a time: nothing is
    ever subtracted, and all weights are relative to the heaviest item left, so the result is good to n · 2⁻⁵³
    at any finite log-weights.

    Args:
        log_weights: vector [n] of finite log-weights.
        rankings: int matrix [N, L] of item indices, best first, 1 ≤ L ≤ n.

    Returns:
        Vector [N], 0 or less; −inf where the probability's logarithm is below the float64 range.

    Source: fair-rag §3.2, equation 1 and p(π|q) = Π p(π_i | π_1..i−1).

    Raises:
        InvalidInput: log-weights not a non-empty vector of finite numbers; rankings not a matrix of whole
            numbers in [0, n), or one that holds an item twice.
    """
    weights = float_array("log_weights", log_weights)
    matrix = rankings_array("rankings", rankings, len(weights))
    # What is left is kept as exp(top + rest): `top` its heaviest log-weight, `rest` its log-mass relative to
    # that. One number could not hold both log-weights of 1e30 and the log 2 between one item and two.
    top, rest = _beyond(weights, matrix)
    total = np.zeros(len(matrix))
    with np.errstate(over="ignore"):
        for item in weights[matrix[:, ::-1]].T:
            heavier = np.maximum(top, item)
            rest = np.logaddexp(rest + (top - heavier), item - heavier)
            top = heavier
            total += (item - top) - rest
    return np.minimum(total, 0.0)


def _beyond(weights: FloatArray, rankings: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mass of the items that each ranking leaves out, as (top, rest); both −inf where it leaves out none."""
    rows, length = rankings.shape
    n = len(weights)
    top = np.full(rows, -np.inf)
    rest = np.full(rows, -np.inf)
    if length == n:
        return top, rest
    frames = build_frames(weights, length + 1)
    bounds = np.empty((rows, length + 2), dtype=np.int64)
    bounds[:, 0], bounds[:, -1] = -1, n
    bounds[:, 1:-1] = np.sort(frames.positions(rankings), axis=1)
    active = frames.active(bounds)
    for index in np.unique(active):
        here = np.flatnonzero(active == index)
        frame = frames.frames[index]
        top[here] = frame.reference
        rest[here] = np.log(frame.untaken(bounds[here]).mass)
    return top, rest
