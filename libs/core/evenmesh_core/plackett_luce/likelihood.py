"""Probabilities of given rankings under a Plackett–Luce policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, IntArray, float_array, rankings_array
from evenmesh_core.plackett_luce.mass import Frames, build_frames


def log_probability(log_weights: ArrayLike, rankings: ArrayLike) -> FloatArray:
    """Return the log-probability that each ranking, or beginning of a ranking, is drawn.

    Works backwards from the mass that no ranking's item holds, adding one item's weight at a time: nothing is
    ever subtracted, and all weights are relative to the heaviest item left, so the result is good to n · 2⁻⁵³
    at any finite log-weights.

    Args:
        log_weights: vector [n] of finite log-weights.
        rankings: int matrix [N, L] of item indices, best first, 1 ≤ L ≤ n.

    Returns:
        Vector [N], 0 or less; −inf where the probability's logarithm is below the float64 range.

    Source: Kim & Diaz 2025, §3.2, equation 1 and p(π|q) = Π p(π_i | π_1..i−1).

    Raises:
        InvalidInput: log-weights not a non-empty vector of finite numbers; rankings not a matrix of whole
            numbers in [0, n), or one that holds an item twice.
    """
    weights = float_array("log_weights", log_weights)
    matrix = rankings_array("rankings", rankings, len(weights))
    frames = build_frames(weights, min(matrix.shape[1] + 1, len(weights)))
    return of_positions(frames, frames.positions(matrix), weights[matrix])


def of_positions(frames: Frames, positions: IntArray, log_weights: FloatArray) -> FloatArray:
    """Return the log-probability of rankings whose places among all items are known.

    Args:
        frames: those of the policy, for one draw more than the rankings are long, or n.
        positions: int matrix [N, L] of the items' positions in the ascending order.
        log_weights: matrix [N, L] of the items' log-weights.

    Returns:
        Vector [N], as :func:`log_probability` has it.
    """
    # What is left is kept as exp(top + rest): `top` its heaviest log-weight, `rest` its log-mass relative to
    # that. One number could not hold both log-weights of 1e30 and the log 2 between one item and two.
    top, rest = _beyond(frames, positions)
    total = np.zeros(len(positions))
    with np.errstate(over="ignore"):
        for item in log_weights[:, ::-1].T:
            heavier = np.maximum(top, item)
            rest = np.logaddexp(rest + (top - heavier), item - heavier)
            top = heavier
            total += (item - top) - rest
    return np.minimum(total, 0.0)


def _beyond(frames: Frames, positions: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the mass of the items that each ranking omits, as (top, rest); −inf where it omits none."""
    rows, length = positions.shape
    n = frames.n_items
    top = np.full(rows, -np.inf)
    rest = np.full(rows, -np.inf)
    if length == n:
        return top, rest
    bounds = np.empty((rows, length + 2), dtype=np.int64)
    bounds[:, 0], bounds[:, -1] = -1, n
    bounds[:, 1:-1] = np.sort(positions, axis=1)
    active = frames.active(bounds)
    for index in np.unique(active):
        here = np.flatnonzero(active == index)
        frame = frames.frames[index]
        top[here] = frame.reference
        rest[here] = np.log(frame.untaken(bounds[here]).mass)
    return top, rest
