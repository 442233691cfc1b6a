"""Count each term in each passage, by passage and by term."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.domain import IntArray

TermArray = NDArray[np.int32]
CountArray = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """Term counts of ``n`` passages and ``t`` terms, all arrays read-only.

    Terms are numbered as they are first seen, reading the passages in row order: BM25Okapi sums idf in that
    order, and the sum of floats depends on it.

    Attributes:
        terms: number of each term, ``t`` entries in ascending number.
        lengths: tokens of each passage, ``[n]``.
        row_bounds: where each passage's terms begin in the two arrays below, ``[n + 1]``.
        row_terms: terms of each passage, in the order they are first seen in it.
        row_counts: how often each of them is in it.
        bounds: where each term's passages begin in the two arrays below, ``[t + 1]``.
        rows: passages of each term, ascending.
        counts: how often it is in each of them.
    """

    terms: Mapping[str, int]
    lengths: TermArray
    row_bounds: IntArray
    row_terms: TermArray
    row_counts: CountArray
    bounds: IntArray
    rows: TermArray
    counts: CountArray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def frequencies(self) -> IntArray:
        """Passages each term is in, ``[t]``."""
        return np.diff(self.bounds)

    def numbers(self, tokens: Iterable[str]) -> IntArray:
        """Return numbers of the known ones among tokens, in order, repetitions included."""
        get = self.terms.get
        return np.array([number for token in tokens if (number := get(token)) is not None], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _ByPassage:
    """The half of :class:`Postings` that is written passage by passage."""

    lengths: TermArray
    row_bounds: IntArray
    row_terms: TermArray
    row_counts: CountArray


def build(documents: Iterable[Sequence[str]]) -> Postings:
    """Return postings of token lists, one per passage in row order."""
    counts = TermCounts()
    for tokens in documents:
        counts.add(tokens)
    return counts.postings()


def merge(base: Postings, documents: Iterable[Sequence[str]], sources: IntArray) -> Postings:
    """Return postings of some passages of ``base`` and some new ones, equal to building them afresh.

    Args:
        base: postings that hold the passages kept.
        documents: token lists of the new passages.
        sources: for each row of the result, its row in ``base``, or ``len(base) + j`` for new passage ``j``.
    """
    counted = TermCounts(dict(base.terms))
    for tokens in documents:
        counted.add(tokens)
    terms, new = counted.terms, counted.by_passage()
    lengths = np.concatenate([base.lengths, new.lengths])[sources]
    row_bounds = np.concatenate([base.row_bounds, base.row_bounds[-1] + new.row_bounds[1:]])
    sizes = np.diff(row_bounds)[sources]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    places = np.repeat(row_bounds[sources] - bounds[:-1], sizes) + np.arange(bounds[-1])
    row_terms = np.concatenate([base.row_terms, new.row_terms])[places]
    row_counts = np.concatenate([base.row_counts, new.row_counts])[places]
    renumbered, kept = _as_first_seen(row_terms, len(terms))
    names = list(terms)
    return _inverted(
        {names[old]: number for number, old in enumerate(kept.tolist())},
        _ByPassage(lengths, bounds, renumbered, row_counts),
    )


class TermCounts:
    """Counts terms passage by passage.

    Args:
        terms: numbers of known terms, to which unknown ones are added; None for none.
    """

    def __init__(self, terms: dict[str, int] | None = None) -> None:
        self.terms = {} if terms is None else terms
        # Counted in C, in the order first seen, and kept as stored: lists would take thrice the memory.
        self._lengths, self._bounds = array("i"), array("q", [0])
        self._row_terms, self._row_counts = array("i"), array("H")

    def add(self, tokens: Sequence[str]) -> None:
        """Count the tokens of the next passage."""
        terms, number = self.terms, self.terms.setdefault
        counts = Counter(tokens)
        self._row_terms.extend([number(token, len(terms)) for token in counts])
        # A passage has at most 65,536 bytes, so no token comes more often than fits; array raises if it did.
        self._row_counts.extend(counts.values())
        self._lengths.append(len(tokens))
        self._bounds.append(len(self._row_terms))

    def by_passage(self) -> _ByPassage:
        """Return the counts of each passage."""
        return _ByPassage(
            np.array(self._lengths, dtype=np.int32),
            np.array(self._bounds, dtype=np.int64),
            np.array(self._row_terms, dtype=np.int32),
            np.array(self._row_counts, dtype=np.uint16),
        )

    def postings(self) -> Postings:
        """Return the postings of the passages, in row order."""
        return _inverted(self.terms, self.by_passage())


def _as_first_seen(row_terms: TermArray, num_terms: int) -> tuple[TermArray, IntArray]:
    """Return numbers terms anew in the order they come, and lists the old numbers of those that do."""
    first = np.full(num_terms, len(row_terms), dtype=np.int64)
    # Backwards, so that of several writes to one term the first occurrence is the last to be written.
    first[row_terms[::-1]] = np.arange(len(row_terms) - 1, -1, -1)
    kept = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(row_terms))]
    number = np.empty(num_terms, dtype=np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    return number[row_terms], kept


def _inverted(terms: Mapping[str, int], half: _ByPassage) -> Postings:
    from scipy import sparse  # a sixth of what a start imports, and only needed to build

    shape = (len(half.lengths), len(terms))
    by_term = sparse.csr_array((half.row_counts, half.row_terms, half.row_bounds), shape=shape).tocsc()
    arrays = (
        half.lengths,
        half.row_bounds,
        half.row_terms,
        half.row_counts,
        by_term.indptr.astype(np.int64),
        by_term.indices.astype(np.int32),
        by_term.data,
    )
    for one in arrays:
        # As memory-mapped ones are; the compiled scorer then knows one type of array.
        one.flags.writeable = False
    return Postings(terms, *arrays)
