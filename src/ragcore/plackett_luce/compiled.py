"""The draws of :mod:`ragcore.plackett_luce.sampling`, compiled: same arithmetic in the same order, same
rankings."""

from __future__ import annotations

import numpy as np
from numba import njit

from ragcore.arrays import FloatArray, IntArray
from ragcore.plackett_luce.mass import Frames


def draw(frames: Frames, uniforms: FloatArray) -> IntArray:
    """Turn uniforms [N, k] into rankings [N, k] of positions in the ascending order."""
    edges, offsets, lows, cores, _ = _packed(frames)
    positions: IntArray = _compiled(edges, offsets, lows, cores, frames.n_items, uniforms)
    return positions


def likelihood(frames: Frames, positions: IntArray, log_weights: FloatArray) -> FloatArray:
    """Give the log-probability [N] of rankings, as :func:`ragcore.plackett_luce.likelihood.of_positions`."""
    found: FloatArray = _compiled_likelihood(*_packed(frames), frames.n_items, positions, log_weights)
    return found


def _packed(frames: Frames) -> tuple[FloatArray, IntArray, IntArray, IntArray, FloatArray]:
    """Edges of all frames end to end, where each frame's begin, lows, cores and references."""
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
    n_items: int,
    uniforms: FloatArray,
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
    return positions


def _likelihood(
    all_edges: FloatArray,
    offsets: IntArray,
    lows: IntArray,
    cores: IntArray,
    references: FloatArray,
    n_items: int,
    positions: IntArray,
    log_weights: FloatArray,
) -> FloatArray:
    rows, depth = positions.shape
    found = np.empty(rows, np.float64)
    bounds = np.empty(depth + 2, np.int64)
    for row in range(rows):
        top, rest = -np.inf, -np.inf
        if depth < n_items:
            bounds[0] = -1
            bounds[depth + 1] = n_items
            bounds[1 : depth + 1] = np.sort(positions[row])
            active = 0
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
            top, rest = references[active], np.log(mass)
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
