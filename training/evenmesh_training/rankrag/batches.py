"""Assign examples to steps: similar costs together, the same for a seed whatever ran before."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from evenmesh_training.rankrag.data.examples import Example

WINDOW: Final = 32
"""Batches that are made from one stretch of the blend, sorted by cost and shuffled."""


class Examples(Protocol):
    """An endless sequence of examples."""

    def __getitem__(self, index: int) -> Example:
        """Return example number ``index``."""


class EpochOrder:
    """Places of ``count`` items, every one once per epoch, each epoch in an order drawn from the seed."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, ordinal: int) -> int:
        """Return the place of item number ``ordinal``, counted from 0 over all epochs."""
        epoch, at = divmod(ordinal, self._count)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._count).tolist()
            self._epoch = epoch
        return self._order[at]


class Batches:
    """The batch of every step, over all processes: step s takes its place in window s // :data:`WINDOW`."""

    def __init__(self, examples: Examples, cost: Callable[[Example], int], *, size: int, seed: int) -> None:
        self._examples = examples
        self._cost = cost
        self._size = size
        self._seed = seed
        self._window = -1
        self._batches: list[list[Example]] = []

    def __getitem__(self, step: int) -> Sequence[Example]:
        """Return the examples of ``step``, counted from 0, cheapest first."""
        window, at = divmod(step, WINDOW)
        if window != self._window:
            count = WINDOW * self._size
            drawn = [self._examples[window * count + place] for place in range(count)]
            costs = [self._cost(example) for example in drawn]
            order = sorted(range(count), key=lambda place: costs[place])
            batches = [
                [drawn[place] for place in order[begin : begin + self._size]]
                for begin in range(0, count, self._size)
            ]
            shuffled = np.random.default_rng([self._seed, window, 3]).permutation(WINDOW)
            self._batches = [batches[int(place)] for place in shuffled]
            self._window = window
        return self._batches[at]
