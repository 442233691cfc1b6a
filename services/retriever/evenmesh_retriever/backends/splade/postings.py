"""Keep weights by term, as BM25 keeps counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.bm25 import kernel
from evenmesh_retriever.backends.bm25.kernel import Impacts, QueryTokens
from evenmesh_retriever.backends.segments.files.mapping import load
from evenmesh_retriever.domain import FloatArray, IntArray, Scored, VectorArray
from evenmesh_retriever.ports import TextEncoder

_ARRAYS: Final = ("bounds", "rows", "impacts")

N = TypeVar("N", bound=np.generic)


class SparseVector(NamedTuple):
    """The terms of a text that have a weight.

    Attributes:
        terms: numbers of vocabulary terms, ascending, ``[t]``.
        weights: weight of each, above 0, ``[t]``.
    """

    terms: IntArray
    weights: VectorArray

    @property
    def nbytes(self) -> int:
        """Return the size of both arrays."""
        return self.terms.nbytes + self.weights.nbytes


class SparseTextEncoder(TextEncoder[SparseVector], Protocol):
    """Turns text into weights of vocabulary terms."""

    vocabulary: int
    """Terms there are."""

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> list[SparseVector]:
        """Return the vectors of passages; ``progress`` gets the number of texts done after each batch."""


@dataclass(frozen=True, slots=True, eq=False)
class ImpactPostings:
    """Weights of ``n`` passages by term.

    Attributes:
        bounds: where each term's passages begin in the two arrays below, ``[vocabulary + 1]``.
        rows: passages of each term, ascending.
        impacts: weight of the term in each of them.
        size: ``n``.
    """

    bounds: IntArray
    rows: NDArray[np.int32]
    impacts: VectorArray
    size: int

    @classmethod
    def build(cls, vectors: Iterable[SparseVector], vocabulary: int) -> ImpactPostings:
        """Return postings of passages in row order, of a vocabulary of ``vocabulary`` terms."""
        terms: list[IntArray] = []
        weights: list[VectorArray] = []
        bounds = [0]
        for vector in vectors:
            terms.append(vector.terms)
            weights.append(vector.weights)
            bounds.append(bounds[-1] + len(vector.terms))
        size = len(terms)
        from scipy import sparse  # takes long to import, and is only needed to build

        by_row = sparse.csr_array(
            (
                np.concatenate([np.empty(0, dtype=np.float32), *weights]),
                np.concatenate([np.empty(0, dtype=np.int64), *terms]),
                np.array(bounds),
            ),
            shape=(size, vocabulary),
        )
        by_term = by_row.tocsc()
        return cls(
            _fixed(by_term.indptr.astype(np.int64)),
            _fixed(by_term.indices.astype(np.int32)),
            _fixed(by_term.data.astype(np.float32)),
            size,
        )

    @classmethod
    def merge(
        cls, parts: Iterable[ImpactPostings], new_rows: Sequence[NDArray[np.int32]], size: int
    ) -> ImpactPostings:
        """Return postings of the passages of several, each row under its new number; -1 leaves it out.

        Args:
            parts: of one vocabulary, 1 or more.
            new_rows: for each of them the new row of each of its rows.
            size: new rows.
        """
        terms, rows, impacts = [], [], []
        vocabulary = 0
        for part, renumbered in zip(parts, new_rows, strict=True):
            vocabulary = len(part.bounds) - 1
            new = renumbered[part.rows]
            kept = new >= 0
            terms.append(np.repeat(np.arange(vocabulary), np.diff(part.bounds))[kept])
            rows.append(new[kept])
            impacts.append(part.impacts[kept])
        term = np.concatenate(terms)
        order = np.lexsort((np.concatenate(rows), term))
        bounds = np.concatenate([[0], np.cumsum(np.bincount(term, minlength=vocabulary))])
        return cls(
            _fixed(bounds.astype(np.int64)),
            _fixed(np.concatenate(rows)[order]),
            _fixed(np.concatenate(impacts)[order]),
            size,
        )

    def save(self, folder: Path) -> None:
        """Write the arrays into a folder that is there."""
        for name in _ARRAYS:
            np.save(folder / f"impacts.{name}.npy", getattr(self, name), allow_pickle=False)
        np.save(folder / "impacts.size.npy", np.array(self.size), allow_pickle=False)

    @classmethod
    def open(cls, folder: Path) -> ImpactPostings:
        """Map the arrays of a folder into memory.

        Raises:
            OSError: a file is missing or cannot be read.
            ValueError, EOFError: a file is no array.
        """
        bounds, rows, impacts = (load(folder / f"impacts.{name}.npy") for name in _ARRAYS)
        return cls(bounds, rows, impacts, int(np.load(folder / "impacts.size.npy", allow_pickle=False)))

    def search(self, query: SparseVector, n: int, allowed: NDArray[np.bool_] | None = None) -> Scored:
        """Return the best ``n`` by inner product with a query, or all; equal scores by ascending row."""
        return kernel.search(self._impacts, self._asked(query), n, allowed)

    def scores(self, query: SparseVector) -> FloatArray:
        """Inner product of a query with each passage, in float64, summed by ascending term, ``[n]``."""
        return kernel.scores(self._impacts, self._asked(query))

    @property
    def _impacts(self) -> Impacts:
        return Impacts(self.rows, self.impacts, self.size)

    def _asked(self, query: SparseVector) -> QueryTokens:
        terms = query.terms.astype(np.int64)
        return QueryTokens(self.bounds[terms], self.bounds[terms + 1], query.weights.astype(np.float64))


def _fixed(array: NDArray[N]) -> NDArray[N]:
    # As memory-mapped ones are; the compiled loops then know one type of array.
    array.flags.writeable = False
    return array
