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


def build(documents: Iterable[Sequence[str]]) -> Postings:
    """Return postings of token lists, one per passage in row order."""
    counts = TermCounts()
    for tokens in documents:
        counts.add(tokens)
    return counts.postings()


class TermCounts:
    """Counts terms passage by passage."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {}
        # Counted in C, in the order first seen, and kept as stored: lists would take thrice the memory.
        self._lengths, self._bounds = array("i"), array("q", [0])
        self._row_terms, self._row_counts = array("i"), array("H")

    def add(self, tokens: Sequence[str]) -> None:
        """Count the tokens of the next passage."""
        terms, number = self._terms, self._terms.setdefault
        counts = Counter(tokens)
        self._row_terms.extend([number(token, len(terms)) for token in counts])
        # A passage has at most 65,536 bytes, so no token comes more often than fits; array raises if it did.
        self._row_counts.extend(counts.values())
        self._lengths.append(len(tokens))
        self._bounds.append(len(self._row_terms))

    def postings(self) -> Postings:
        """Return the postings of the passages, in row order."""
        from scipy import sparse  # a sixth of what a start imports, and only needed to build

        lengths = np.array(self._lengths, dtype=np.int32)
        row_bounds = np.array(self._bounds, dtype=np.int64)
        row_terms = np.array(self._row_terms, dtype=np.int32)
        row_counts = np.array(self._row_counts, dtype=np.uint16)
        shape = (len(lengths), len(self._terms))
        by_term = sparse.csr_array((row_counts, row_terms, row_bounds), shape=shape).tocsc()
        arrays = (
            lengths,
            row_bounds,
            row_terms,
            row_counts,
            by_term.indptr.astype(np.int64),
            by_term.indices.astype(np.int32),
            by_term.data,
        )
        for one in arrays:
            # As memory-mapped ones are; the compiled scorer then knows one type of array.
            one.flags.writeable = False
        return Postings(self._terms, *arrays)
