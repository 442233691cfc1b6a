"""Run the two loops of a sparse search: sum contributions and select the best; compiled or in NumPy."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.bm25.postings import CountArray, TermArray
from evenmesh_retriever.backends.bm25.weighting import Lucene, Weighting
from evenmesh_retriever.backends.selection import best, ordered
from evenmesh_retriever.domain import FloatArray, IntArray, Scored, VectorArray

_log = logging.getLogger("evenmesh.retriever.bm25")

# Counts whose parts are looked up; larger ones are rare, and worked out.
_LOOKED_UP: Final = 16
_ALL: Final = np.empty(0, dtype=np.bool_)

MaskArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Postings that hold counts, and what a count is worth, for ``n`` passages.

    Attributes:
        rows: passages of each term, ascending, one term after the other.
        counts: how often it is in each of them.
        lengths: tokens of each passage, ``[n]``.
        table: parts of the counts from 0 on in passages of each length, ``[counts, lengths]``.
        norms: what makes counts comparable in passages of each length, ``[lengths]``.
        weighting: the formula.
        numbers: its gain, absent, k1 and lift.
    """

    rows: TermArray
    counts: CountArray
    lengths: TermArray
    table: FloatArray
    norms: FloatArray
    weighting: Weighting
    numbers: FloatArray

    @classmethod
    def of(
        cls,
        rows: TermArray,
        counts: CountArray,
        lengths: TermArray,
        weighting: Weighting,
        average: float,
    ) -> Counts:
        """Return the postings by a formula, where passages of the collection have ``average`` tokens."""
        longest = int(lengths.max(initial=0))
        norms = weighting.norms(np.arange(longest + 1, dtype=np.float64), average)
        table = weighting.parts(np.arange(_LOOKED_UP, dtype=np.float64)[:, None], norms[None, :])
        numbers = np.array([weighting.gain, weighting.absent, weighting.k1, weighting.lift])
        return cls(rows, counts, lengths, table, norms, weighting, numbers)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def absent(self) -> float:
        """What passages without a term get of it, before its weight."""
        return self.weighting.absent

    def parts(self, postings: slice) -> FloatArray:
        """Return what some of the postings are worth, before the weight of their term."""
        counts = self.counts[postings].astype(np.float64)
        norms = self.norms[self.lengths[self.rows[postings]]]
        return self.weighting.parts(counts, norms)


@dataclass(frozen=True, slots=True, eq=False)
class Impacts:
    """Postings that hold what they are worth themselves, for ``n`` passages.

    Attributes:
        rows: passages of each term, ascending, one term after the other.
        impacts: what each of them gets, before the weight of the term.
        size: ``n``.
    """

    rows: TermArray
    impacts: VectorArray
    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def absent(self) -> float:
        """What passages without a term get of it: nothing."""
        return 0.0

    def parts(self, postings: slice) -> FloatArray:
        """Return what some of the postings are worth, before the weight of their term."""
        return self.impacts[postings].astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class QueryTokens:
    """The tokens of a query, in order, repetitions included; ``p`` of them.

    Attributes:
        begins: where the postings of each begin, ``[p]``.
        ends: where they end; at the beginning for a token that no passage here has.
        weights: weight of each, ``[p]``.
    """

    begins: IntArray
    ends: IntArray
    weights: FloatArray


class Kernel(Protocol):
    """The loops. Called from several threads at once."""

    @property
    def name(self) -> str:
        """What runs them."""

    def scores(self, postings: Counts | Impacts, asked: QueryTokens) -> FloatArray:
        """Return what each passage gets of the tokens, added up token by token, ``[n]``."""

    def search(
        self, postings: Counts | Impacts, asked: QueryTokens, n: int, allowed: MaskArray | None = None
    ) -> Scored:
        """Return the best ``n`` of :meth:`scores`, or all there are, equal ones by ascending row.

        ``allowed`` says of each passage whether it may be found; None: all may.
        """


class NumpyKernel:
    """The loops in NumPy."""

    name = "numpy"

    def scores(self, postings: Counts | Impacts, asked: QueryTokens) -> FloatArray:
        """See :class:`Kernel`."""
        scores = np.zeros(len(postings))
        for begin, end, weight in zip(
            asked.begins.tolist(), asked.ends.tolist(), asked.weights.tolist(), strict=True
        ):
            part = slice(begin, end)
            rows = postings.rows[part]
            if postings.absent:
                gains = np.full(len(postings), weight * postings.absent)
                gains[rows] = weight * postings.parts(part)
                scores += gains
            else:
                scores[rows] += weight * postings.parts(part)
        return scores

    def search(
        self, postings: Counts | Impacts, asked: QueryTokens, n: int, allowed: MaskArray | None = None
    ) -> Scored:
        """See :class:`Kernel`."""
        scores = self.scores(postings, asked)
        if allowed is None:
            return best(scores, n)
        rows = np.flatnonzero(allowed)
        found = best(scores[rows], n)
        return Scored(rows[found.rows], found.scores)


class NumbaKernel:
    """The loops compiled by numba: several times as fast, and without the GIL.

    Making one compiles, which takes seconds, or loads what an earlier process compiled: no query waits.

    Raises:
        ImportError: numba is not there.
    """

    name = "numba"

    def __init__(self) -> None:
        from evenmesh_retriever.backends.bm25 import compiled

        self._loops: Any = compiled
        self.search(_tiny(), QueryTokens(np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1)), 1)

    def scores(self, postings: Counts | Impacts, asked: QueryTokens) -> FloatArray:
        """See :class:`Kernel`."""
        scores = np.zeros(len(postings))
        self._loops.accumulate(asked.begins, asked.ends, asked.weights, *_fields(postings), scores)
        return scores

    def search(
        self, postings: Counts | Impacts, asked: QueryTokens, n: int, allowed: MaskArray | None = None
    ) -> Scored:
        """See :class:`Kernel`."""
        wanted = min(n, len(postings))
        if not wanted:
            return Scored(np.empty(0, dtype=np.int64), np.empty(0))
        # Read-only, as all that is mapped: the loops are compiled for one type of array.
        may = (_ALL if allowed is None else allowed).view()
        may.flags.writeable = False
        terms = (asked.begins, asked.ends, asked.weights)
        found = self._loops.search(*terms, *_fields(postings), len(postings), may, wanted)
        return ordered(*found)


def _tiny() -> Counts:
    """Return one passage of one token."""
    rows, counts = np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.uint16)
    lengths = np.ones(1, dtype=np.int32)
    for one in (rows, counts, lengths):
        one.flags.writeable = False
    return Counts.of(rows, counts, lengths, Lucene(), 1.0)


def _fields(postings: Counts | Impacts) -> tuple[Any, ...]:
    if isinstance(postings, Impacts):
        return postings.rows, postings.impacts, None, None, None, None
    return (
        postings.rows,
        postings.counts,
        postings.lengths,
        postings.table.ravel(),
        postings.norms,
        postings.numbers,
    )


def choose(name: Literal["auto", "numba", "numpy"] = "auto") -> Kernel:
    """Return the kernel of that name; ``auto`` is numba where it is installed.

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
