"""Probability mass of the items not yet drawn, exact however few items hold nearly all of it.

Items stand in ascending order of weight, and prefix sums of the weights give the mass of any run of
neighbours by one subtraction. In that order the subtraction is safe: everything below a run of neighbours
weighs at most n times its lightest member, so the relative error stays below n · 2⁻⁵³. What is left after
some draws is the runs between the items taken, never "everything minus what was taken", which would cancel to
nothing once the heavy items are gone.

Weights range over e^(10³⁰) at α = 100, so one float64 prefix sum cannot hold them all. A :class:`Frame` holds
the items within a factor e^700 of its heaviest; it serves until all items within a factor e^300 of that one
(its core) are taken, and then the next frame, whose heaviest item is the heaviest one left, takes over. What
a frame leaves out weighs less than n · e^-400 of what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray

CORE = 300.0
"""Log of the factor that the weights of a frame's core span, (0, inf)."""
_WINDOW = 700.0  # exp(-700) is still a normal float64


@dataclass(frozen=True)
class Frame:
    """Prefix sums of the weights of the items at positions [low, high) of the ascending order.

    An item is a cell: cell c, from 1 to high − low, spans [edges[c], edges[c + 1]) of the frame's mass. The
    cells before and after, 0 and high − low + 1, are empty; they stand for the items outside the frame.
    """

    low: int
    high: int
    core: int
    """Position of the lightest item of the core; the core is [core, high)."""
    reference: float
    """Log-weight of the heaviest item; weights are relative to it."""
    edges: FloatArray
    """Vector [high − low + 3], ascending from 0 to the frame's mass."""

    def untaken(self, bounds: IntArray) -> Untaken:
        """Find the runs of untaken items.

        Args:
            bounds: matrix [N, j + 2] of the positions taken, each row sorted, between −1 and n.
        """
        cells = bounds - (self.low - 1)
        np.maximum(cells, 0, out=cells)
        np.minimum(cells, self.high - self.low + 1, out=cells)
        starts = self.edges[cells[:, :-1] + 1]
        cumulative = np.zeros(cells.shape)
        np.cumsum(self.edges[cells[:, 1:]] - starts, axis=1, out=cumulative[:, 1:])
        return Untaken(self, cells, starts, cumulative)


@dataclass(frozen=True)
class Untaken:
    """The runs of untaken items within one frame, for each of N rankings with j items taken."""

    frame: Frame
    cells: IntArray
    """Matrix [N, j + 2]: run r lies between cells r and r + 1, both exclusive."""
    starts: FloatArray
    """Matrix [N, j + 1]: the edge where each run starts."""
    cumulative: FloatArray
    """Matrix [N, j + 2]: mass of the runs before each."""

    @property
    def mass(self) -> FloatArray:
        """Vector [N]: all that is left, relative to the frame's reference."""
        return self.cumulative[:, -1]

    def locate(self, uniforms: FloatArray) -> IntArray:
        """Find the positions of the items at shares ``uniforms`` [N], in [0, 1), of the mass left."""
        rows = np.arange(len(uniforms))
        target = uniforms * self.mass
        run = np.count_nonzero(self.cumulative[:, 1:] <= target[:, None], axis=1)
        place = self.starts[rows, run] + (target - self.cumulative[rows, run])
        cell = np.searchsorted(self.frame.edges, place, side="right") - 1
        # Rounding may carry the place over the end of its run, onto an item taken; it must not come again.
        cell = np.minimum(cell, self.cells[rows, run + 1] - 1)
        positions: IntArray = cell + (self.frame.low - 1)
        return positions


@dataclass(frozen=True)
class Frames:
    """The items of a policy in ascending order of weight, and the frames that a number of draws can reach."""

    n_items: int
    order: IntArray | None
    """Vector [n]: the item at each position; None where they were given in descending order."""
    frames: tuple[Frame, ...]

    def items(self, positions: IntArray) -> IntArray:
        """Name the items at positions of the ascending order."""
        return self.n_items - 1 - positions if self.order is None else self.order[positions]

    def positions(self, items: IntArray) -> IntArray:
        """Find the positions of items in the ascending order."""
        if self.order is None:
            return self.n_items - 1 - items
        inverse = np.empty(self.n_items, dtype=np.int64)
        inverse[self.order] = np.arange(self.n_items)
        return inverse[items]

    def active(self, bounds: IntArray) -> IntArray:
        """Return the active frame of each row of taken positions [N, j + 2]: the first with core left."""
        index = np.zeros(len(bounds), dtype=np.int64)
        for frame in self.frames[:-1]:
            # Cores lie below one another: those before this one and this one are the positions [core, n).
            index += np.count_nonzero(bounds[:, :-1] >= frame.core, axis=1) == self.n_items - frame.core
        return index


def build_frames(log_weights: FloatArray, depth: int) -> Frames:
    """Order the items and build the frames that ``depth`` draws can need, in O(n) unless a sort is needed.

    Args:
        log_weights: vector [n], finite.
        depth: number of draws, 1 to n.
    """
    order, ordered = _ascending(log_weights)
    n = len(ordered)
    frames = []
    high = n
    while True:
        reference = float(ordered[high - 1])
        core = low = 0
        if ordered[0] < reference - CORE:  # otherwise all is core, and `ordered` may be only nearly sorted
            core = int(np.searchsorted(ordered[:high], reference - CORE))
            low = int(np.searchsorted(ordered[:high], reference - _WINDOW))
        edges = np.empty(high - low + 3)
        edges[:2] = 0.0
        weights = edges[2:-1]
        np.subtract(ordered[low:high], reference, out=weights)
        np.exp(weights, out=weights)
        np.cumsum(weights, out=weights)
        edges[-1] = edges[-2]
        frames.append(Frame(low, high, core, reference, edges))
        if n - core >= depth or core == 0:
            return Frames(n, order, tuple(frames))
        high = core


def _ascending(log_weights: FloatArray) -> tuple[IntArray | None, FloatArray]:
    """Order the items by ascending log-weight; to within 1 % of a weight where they span no more than a core.

    A factor of 1.01 does not matter to the precision of prefix sums, and the coarse order is a radix sort.

    Returns:
        The items in that order, None where it is theirs reversed; and their log-weights.
    """
    if np.all(log_weights[:-1] >= log_weights[1:]):  # as retrievers return them
        return None, log_weights[::-1]
    lightest = log_weights.min()
    with np.errstate(over="ignore"):
        span = log_weights.max() - lightest
    if span > CORE:
        order = np.argsort(log_weights, kind="stable")
    else:
        level = (log_weights - lightest) / span * np.iinfo(np.uint16).max
        order = np.argsort(level.astype(np.uint16), kind="stable")
    return order, log_weights[order]
