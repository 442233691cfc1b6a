"""The draws of :mod:`evenmesh_core.plackett_luce.sampling`, compiled: same arithmetic in the same order, same
rankings."""

from __future__ import annotations

import numpy as np
from numba import njit

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.plackett_luce.mass import CORE, Frames


def draw(frames: Frames, uniforms: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Turn uniforms [N, k] into rankings [N, k] of positions in the ascending order.

    Returns:
        Those; and for :func:`likelihood` the heaviest log-weight [N] of what each ranking leaves out, and its
        log-mass [N] relative to that: −inf where it leaves out nothing, and of no use unless the frames are
        those of one draw more.
    """
    rows = len(uniforms)
    tops, rests = np.full(rows, -np.inf), np.full(rows, -np.inf)
    positions: IntArray = _compiled(*_packed(frames), frames.n_items, uniforms, tops, rests)
    return positions, tops, rests


def likelihood(tops: FloatArray, rests: FloatArray, log_weights: FloatArray) -> FloatArray:
    """Return the log-probability [N] of rankings, from what they leave out and their log-weights [N, k].

    The arithmetic is that of :func:`evenmesh_core.plackett_luce.likelihood.of_positions`.
    """
    found: FloatArray = _compiled_likelihood(tops, rests, log_weights)
    return found


def draw_from_scores(
    scores: FloatArray, alpha: float, uniforms: FloatArray
) -> tuple[IntArray, FloatArray] | None:
    """Draw the rankings of a policy and their log-probabilities in one compiled call.

    Beside a search, whose arrays have just filled the caches, every call into NumPy costs several times what
    it costs alone, and a draw of its parts is twenty of them.

    Returns:
        Rankings [N, depth] and log-probabilities [N]; None where scores are not finite and descending, or
        weights span more than one frame holds: the parts know what to do with those.
    """
    done, rankings, log_probabilities = _compiled_draw(scores, alpha, uniforms)
    return (rankings, log_probabilities) if done else None


def _packed(frames: Frames) -> tuple[FloatArray, IntArray, IntArray, IntArray, FloatArray]:
    """Return edges of all frames end to end, where each frame begins, lows, cores and references."""
    parts = frames.frames
    sizes = [0] + [len(frame.edges) for frame in parts]
    return (
        parts[0].edges if len(parts) == 1 else np.concatenate([frame.edges for frame in parts]),
        np.array(sizes).cumsum(),
        np.array([frame.low for frame in parts]),
        np.array([frame.core for frame in parts]),
        np.array([frame.reference for frame in parts]),
    )


def _draw(
    all_edges: FloatArray,
    offsets: IntArray,
    lows: IntArray,
    cores: IntArray,
    references: FloatArray,
    n_items: int,
    uniforms: FloatArray,
    tops: FloatArray,
    rests: FloatArray,
) -> IntArray:
    rows, depth = uniforms.shape
    positions = np.empty((rows, depth), np.int64)
    bounds = np.empty(depth + 2, np.int64)  # the positions taken, sorted, between −1 and n
    cumulative = np.empty(depth + 1, np.float64)
    for row in range(rows):
        active = 0
        bounds[0] = -1
        bounds[1] = n_items
        for step in range(depth):
            while active < len(cores) - 1:
                passed = 0
                for i in range(1, step + 1):
                    if bounds[i] >= cores[active]:
                        passed += 1
                if passed < n_items - cores[active]:
                    break
                active += 1
            edges = all_edges[offsets[active] : offsets[active + 1]]
            last = len(edges) - 2
            shift = lows[active] - 1

            mass = 0.0
            for run in range(step + 1):
                start = edges[min(max(bounds[run] - shift, 0), last) + 1]
                mass += edges[min(max(bounds[run + 1] - shift, 0), last)] - start
                cumulative[run] = mass
            target = uniforms[row, step] * mass
            run = 0
            while cumulative[run] <= target:
                run += 1
            left = min(max(bounds[run] - shift, 0), last) + 1
            right = min(max(bounds[run + 1] - shift, 0), last) - 1
            place = edges[left] + (target - (cumulative[run - 1] if run > 0 else 0.0))
            while left < right:  # the last cell of the run whose lower edge is not past the place
                middle = (left + right + 1) // 2
                if edges[middle] <= place:
                    left = middle
                else:
                    right = middle - 1

            positions[row, step] = left + shift
            for i in range(step + 2, run + 1, -1):
                bounds[i] = bounds[i - 1]
            bounds[run + 1] = left + shift
        if depth < n_items:  # what is left out; within the loop this makes all draws take twice as long
            while active < len(cores) - 1:
                passed = 0
                for i in range(1, depth + 1):
                    if bounds[i] >= cores[active]:
                        passed += 1
                if passed < n_items - cores[active]:
                    break
                active += 1
            edges = all_edges[offsets[active] : offsets[active + 1]]
            last = len(edges) - 2
            shift = lows[active] - 1
            mass = 0.0
            for run in range(depth + 1):
                start = edges[min(max(bounds[run] - shift, 0), last) + 1]
                mass += edges[min(max(bounds[run + 1] - shift, 0), last)] - start
            tops[row], rests[row] = references[active], np.log(mass) if mass > 0.0 else -np.inf
    return positions


def _likelihood(tops: FloatArray, rests: FloatArray, log_weights: FloatArray) -> FloatArray:
    rows, depth = log_weights.shape
    found = np.empty(rows, np.float64)
    for row in range(rows):
        top, rest = tops[row], rests[row]
        total = 0.0
        for step in range(depth - 1, -1, -1):
            item = log_weights[row, step]
            heavier = max(top, item)
            one = -np.inf if top == -np.inf else rest + (top - heavier)
            other = item - heavier
            most = max(one, other)
            rest = most + np.log1p(np.exp(min(one, other) - most))
            top = heavier
            total += (item - top) - rest
        found[row] = min(total, 0.0)
    return found


_compiled = njit(cache=True, nogil=True)(_draw)
_compiled_likelihood = njit(cache=True, nogil=True)(_likelihood)


def _draw_from_scores(
    scores: FloatArray, alpha: float, uniforms: FloatArray
) -> tuple[bool, IntArray, FloatArray]:
    n_items, (rows, depth) = len(scores), uniforms.shape
    rankings, log_probabilities = np.empty((rows, depth), np.int64), np.empty(rows, np.float64)
    low, span = scores[-1], scores[0] - scores[-1]
    if not np.isfinite(span):
        return False, rankings, log_probabilities
    weights = np.empty(n_items, np.float64)
    for item in range(n_items):
        if item > 0 and not scores[item - 1] >= scores[item]:
            return False, rankings, log_probabilities
        weights[item] = (1.0 + (scores[item] - low) / span) ** alpha if span > 0.0 else 1.0
    top = weights[0]
    if top - weights[-1] > CORE:
        return False, rankings, log_probabilities
    edges = np.zeros(n_items + 3, np.float64)  # of the one frame, as build_frames has it
    for position in range(n_items):
        edges[position + 2] = edges[position + 1] + np.exp(weights[n_items - 1 - position] - top)
    edges[-1] = edges[-2]
    tops, rests = np.full(rows, -np.inf), np.full(rows, -np.inf)
    none = np.zeros(1, np.int64)
    bounds = np.array([0, len(edges)])
    positions = _compiled(edges, bounds, none, none, np.full(1, top), n_items, uniforms, tops, rests)
    drawn = np.empty((rows, depth), np.float64)
    for row in range(rows):
        for step in range(depth):
            rankings[row, step] = n_items - 1 - positions[row, step]
            drawn[row, step] = weights[rankings[row, step]]
    return True, rankings, _compiled_likelihood(tops, rests, drawn)


_compiled_draw = njit(cache=True, nogil=True)(_draw_from_scores)
