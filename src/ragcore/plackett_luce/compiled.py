"""The draws of :mod:`ragcore.plackett_luce.sampling`, compiled: same arithmetic in the same order, same
rankings."""

from __future__ import annotations

import numpy as np
from numba import njit

from ragcore.arrays import FloatArray, IntArray
from ragcore.plackett_luce.mass import Frames


def draw(frames: Frames, uniforms: FloatArray) -> IntArray:
    """Turn uniforms [N, k] into rankings [N, k] of positions in the ascending order."""
    parts = frames.frames
    offsets = np.cumsum([0] + [len(frame.edges) for frame in parts])
    edges = parts[0].edges if len(parts) == 1 else np.concatenate([frame.edges for frame in parts])
    lows = np.array([frame.low for frame in parts])
    cores = np.array([frame.core for frame in parts])
    positions: IntArray = _compiled(edges, offsets, lows, cores, frames.n_items, uniforms)
    return positions


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


_compiled = njit(cache=True)(_draw)
