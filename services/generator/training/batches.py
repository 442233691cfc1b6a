"""Which examples make up which step: like costs together, the same for a seed whatever ran before."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from services.generator.training.examples import Example

WINDOW: Final = 32
"""Batches that are made from one stretch of the blend, sorted by cost and shuffled."""


class Examples(Protocol):
    """An endless sequence of examples."""

    def __getitem__(self, index: int) -> Example:
        """Example number ``index``."""


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
        """The examples of ``step``, counted from 0, cheapest first."""
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
