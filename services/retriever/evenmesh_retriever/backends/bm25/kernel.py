"""Run the two loops of a sparse search, compiled by numba: sum contributions and select the best."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.bm25.postings import CountArray, TermArray
from evenmesh_retriever.backends.bm25.weighting import Lucene, Weighting
from evenmesh_retriever.backends.selection import ordered
from evenmesh_retriever.domain import FloatArray, IntArray, Scored, VectorArray

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
        numbers: the formula's gain, absent, k1 and lift.
    """

    rows: TermArray
    counts: CountArray
    lengths: TermArray
    table: FloatArray
    norms: FloatArray
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
        return cls(rows, counts, lengths, table, norms, numbers)

    def __len__(self) -> int:
        return len(self.lengths)


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


def warm() -> None:
    """Compile the loops, which takes seconds, or load what an earlier process compiled: no query waits."""
    search(_tiny(), QueryTokens(np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1)), 1)


def scores(postings: Counts | Impacts, asked: QueryTokens) -> FloatArray:
    """Return what each passage gets of the tokens, added up token by token, ``[n]``."""
    sums = np.zeros(len(postings))
    _loops().accumulate(asked.begins, asked.ends, asked.weights, *_fields(postings), sums)
    return sums


def search(
    postings: Counts | Impacts, asked: QueryTokens, n: int, allowed: MaskArray | None = None
) -> Scored:
    """Return the best ``n`` of :func:`scores`, or all there are, equal ones by ascending row.

    ``allowed`` says of each passage whether it may be found; None: all may.
    """
    wanted = min(n, len(postings))
    if not wanted:
        return Scored(np.empty(0, dtype=np.int64), np.empty(0))
    # Read-only, as all that is mapped: the loops are compiled for one type of array.
    may = (_ALL if allowed is None else allowed).view()
    may.flags.writeable = False
    terms = (asked.begins, asked.ends, asked.weights)
    found = _loops().search(*terms, *_fields(postings), len(postings), may, wanted)
    return ordered(*found)


@cache
def _loops() -> Any:
    # Importing numba takes a while, which whoever only builds postings does without.
    from evenmesh_retriever.backends.bm25 import compiled

    return compiled


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
