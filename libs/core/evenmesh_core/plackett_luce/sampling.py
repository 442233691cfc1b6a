"""Exact draws from a Plackett–Luce policy."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, IntArray, count, float_array
from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce.likelihood import of_positions
from evenmesh_core.plackett_luce.mass import Frames, build_frames
from evenmesh_core.plackett_luce.policy import log_weights as weights_of
from evenmesh_core.plackett_luce.policy import temperature
from evenmesh_core.seeds import Seed, generator


class Draws(NamedTuple):
    """Rankings and how likely each was.

    Attributes:
        rankings: int matrix [N, min(k, n)] of item indices, best first.
        log_probabilities: vector [N], 0 or less.
    """

    rankings: IntArray
    log_probabilities: FloatArray


def sample_rankings(
    log_weights: ArrayLike,
    *,
    num_rankings: int,
    k: int,
    rng: Seed,
    engine: Literal["numpy", "numba"] = "numpy",
) -> IntArray:
    """Draw rankings of k items: P(item next) is proportional to exp(log_weight) among the items left.

    Takes O(n + N·k·(k + log n)) time and O(n + N·k) memory; weights that span more than a factor e^300 and
    are not given in descending order cost a sort on top. The draw is exact at any finite log-weights: prefix
    sums of the weights, with the intervals of the items taken excised
    (:mod:`evenmesh_core.plackett_luce.mass`). It is the same draw for the same seed on either engine and any
    machine, as far as its ``exp`` agrees with others to the last bit (where it does not, a ranking differs
    with a probability below 1e-9). The first rankings do not depend on how many follow.

    Args:
        log_weights: vector [n] of finite log-weights, in any order; descending is fastest.
        num_rankings: number N of rankings, from 1.
        k: length of the rankings, from 1; more than n gives n.
        rng: a NumPy generator, which advances by N·min(k, n) uniforms, or a seed for a new one.
        engine: "numpy", or "numba", which needs that package and compiles once per machine (seconds) for
            draws up to five times as fast. The caller chooses: no request should wait for a compiler.

    Returns:
        Int matrix [N, min(k, n)] of item indices, best first, each at most once per ranking.

    Source: Kim & Diaz 2025, §3.2, equations 1 and 2; Plackett 1975.

    Raises:
        InvalidInput: log-weights not a non-empty vector of finite numbers, num_rankings or k below 1, no
            seed, or an unknown engine.
    """
    weights = float_array("log_weights", log_weights)
    uniforms = _uniforms(len(weights), num_rankings, k, rng)
    frames = build_frames(weights, uniforms.shape[1])
    return frames.items(_positions(frames, uniforms, engine))


def draw_rankings(
    log_weights: ArrayLike,
    *,
    num_rankings: int,
    k: int,
    rng: Seed,
    engine: Literal["numpy", "numba"] = "numpy",
) -> Draws:
    """Draw rankings and give the log-probability of each, ordering and adding up the weights only once.

    The same as :func:`sample_rankings` followed by :func:`evenmesh_core.plackett_luce.log_probability`, at
    half the cost or less; to the last bit with NumPy, and with numba but for the last digits of the
    log-probabilities. Arguments and errors are those of :func:`sample_rankings`.

    Source: Kim & Diaz 2025, §3.2, equations 1 and 2.
    """
    weights = float_array("log_weights", log_weights)
    return _drawn(weights, _uniforms(len(weights), num_rankings, k, rng), engine)


def draw_from_scores(
    scores: ArrayLike,
    alpha: float,
    *,
    num_rankings: int,
    k: int,
    rng: Seed,
    engine: Literal["numpy", "numba"] = "numpy",
) -> Draws:
    """Draw rankings of the policy of scores, with their log-probabilities.

    The same as :func:`evenmesh_core.plackett_luce.log_weights` followed by :func:`draw_rankings`: to the last
    bit with NumPy, and with numba as far as its ``exp`` and power agree with NumPy's, in a fraction of the
    time where scores descend.

    Args:
        scores: vector [n] of finite retrieval scores of any sign; descending is fastest.
        alpha: sharpness of the policy, [0, 100].
        num_rankings, k, rng, engine: as for :func:`draw_rankings`.

    Source: Kim & Diaz 2025, §3.2, equations 1 and 2.

    Raises:
        InvalidInput: as :func:`evenmesh_core.plackett_luce.log_weights` and :func:`draw_rankings` do.
    """
    values = float_array("scores", scores)
    exponent = temperature(alpha)
    uniforms = _uniforms(len(values), num_rankings, k, rng)
    if engine == "numba":
        from evenmesh_core.plackett_luce import compiled

        drawn = compiled.draw_from_scores(values, exponent, uniforms)
        if drawn is not None:
            return Draws(*drawn)
    return _drawn(weights_of(values, exponent), uniforms, engine)


def _uniforms(n_items: int, num_rankings: int, k: int, rng: Seed) -> FloatArray:
    rows = count("num_rankings", num_rankings)
    return generator(rng).random((rows, min(count("k", k), n_items)))


def _drawn(weights: FloatArray, uniforms: FloatArray, engine: str) -> Draws:
    frames = build_frames(weights, min(uniforms.shape[1] + 1, len(weights)))
    if engine == "numba":
        from evenmesh_core.plackett_luce.compiled import draw, likelihood

        positions, tops, rests = draw(frames, uniforms)
        rankings = frames.items(positions)
        return Draws(rankings, likelihood(tops, rests, weights[rankings]))
    positions = _positions(frames, uniforms, engine)
    rankings = frames.items(positions)
    return Draws(rankings, of_positions(frames, positions, weights[rankings]))


def _positions(frames: Frames, uniforms: FloatArray, engine: str) -> IntArray:
    if engine == "numpy":
        return _draw(frames, uniforms)
    if engine == "numba":
        from evenmesh_core.plackett_luce.compiled import draw

        return draw(frames, uniforms)[0]
    raise InvalidInput("engine", engine, "'numpy' or 'numba'")


def _draw(frames: Frames, uniforms: FloatArray) -> IntArray:
    """Turn uniforms [N, k] into rankings [N, k] of positions in the ascending order."""
    rows, depth = uniforms.shape
    positions = np.empty((rows, depth), dtype=np.int64)
    bounds = np.full((rows, 2), -1)  # the positions taken, sorted, between −1 and n
    bounds[:, 1] = frames.n_items
    for step in range(depth):
        if len(frames.frames) == 1:
            drawn = frames.frames[0].untaken(bounds).locate(uniforms[:, step])
        else:
            drawn = np.empty(rows, dtype=np.int64)
            active = frames.active(bounds)
            for index in np.unique(active):
                here = np.flatnonzero(active == index)
                drawn[here] = frames.frames[index].untaken(bounds[here]).locate(uniforms[here, step])
        positions[:, step] = drawn
        bounds = np.sort(np.concatenate([bounds, drawn[:, None]], axis=1), axis=1)
    return positions
