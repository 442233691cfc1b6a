"""The two loops of a BM25 search: adding up what terms give, and picking the best. Compiled or in NumPy."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from services.retriever.backends.bm25.postings import CountArray, TermArray
from services.retriever.backends.selection import best, ordered
from services.retriever.domain import FloatArray, IntArray, Scored

_log = logging.getLogger("ragmesh.retriever.bm25")


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What the loops read, for ``t`` terms and ``n`` passages.

    Attributes:
        slots: row in ``dense`` of each term that has one, else -1, ``[t]``.
        dense: ready scores of a term for every passage, ``[slots, n]``.
        bounds: where each term's passages begin in ``rows`` and ``counts``, ``[t + 1]``.
        rows: passages of each term, ascending.
        counts: how often it is in each of them.
        idf: weight of each term, ``[t]``.
        norms: k1 * (1 - b + b * |d| / avgdl) of each passage, ``[n]``.
        gain: constant factor.
    """

    slots: TermArray
    dense: FloatArray
    bounds: IntArray
    rows: TermArray
    counts: CountArray
    idf: FloatArray
    norms: FloatArray
    gain: float


class Kernel(Protocol):
    """The loops. Called from several threads at once."""

    @property
    def name(self) -> str:
        """What runs them."""

    def accumulate(self, tables: Tables, numbers: IntArray, scores: FloatArray) -> None:
        """Adds to ``scores``, ``[n]``, what each of the query's terms gives each passage, term by term."""

    def select(self, scores: FloatArray, n: int) -> Scored:
        """The ``min(n, len(scores))`` best scores, equal ones by ascending row."""


class NumpyKernel:
    """The loops in NumPy."""

    name = "numpy"

    def accumulate(self, tables: Tables, numbers: IntArray, scores: FloatArray) -> None:
        """See :class:`Kernel`."""
        for number in numbers.tolist():
            slot = tables.slots[number]
            if slot >= 0:
                scores += tables.dense[slot]
                continue
            part = slice(tables.bounds[number], tables.bounds[number + 1])
            rows, counts = tables.rows[part], tables.counts[part].astype(np.float64)
            scores[rows] += tables.idf[number] * (counts * tables.gain / (counts + tables.norms[rows]))

    def select(self, scores: FloatArray, n: int) -> Scored:
        """See :class:`Kernel`."""
        return best(scores, n)


class NumbaKernel:
    """The loops compiled by numba: several times as fast, and without the GIL.

    The first call compiles, or loads what an earlier process compiled.

    Raises:
        ImportError: numba is not there.
    """

    name = "numba"

    def __init__(self) -> None:
        from services.retriever.backends.bm25 import compiled

        self._loops = compiled

    def accumulate(self, tables: Tables, numbers: IntArray, scores: FloatArray) -> None:
        """See :class:`Kernel`."""
        self._loops.accumulate(
            numbers,
            tables.slots,
            tables.dense,
            tables.bounds,
            tables.rows,
            tables.counts,
            tables.idf,
            tables.norms,
            tables.gain,
            scores,
        )

    def select(self, scores: FloatArray, n: int) -> Scored:
        """See :class:`Kernel`."""
        return ordered(*self._loops.select(scores, min(n, len(scores))))


def choose(name: Literal["auto", "numba", "numpy"] = "auto") -> Kernel:
    """The kernel of that name; ``auto`` is numba where it is installed.

    Raises:
        ImportError: numba is asked for and not there.
    """
    if name == "numpy":
        return NumpyKernel()
    try:
        return NumbaKernel()
    except ImportError:
        if name == "numba":
            raise
        _log.warning("numba is not installed: BM25 runs on NumPy, several times slower")
        return NumpyKernel()
