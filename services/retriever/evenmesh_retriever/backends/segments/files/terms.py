"""Map the terms of a segment to numbers and back, through hashes and without loading anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.segments.files.hashes import HashArray, HashIndex, hashes_of

_KEPT: Final = 8192
_LONGEST_KEPT: Final = 64
"""Longest term that is kept: anybody may ask for terms as long as a query. Characters."""


class TermTable(Mapping[str, int]):
    """Numbers of terms.

    Args:
        arrays: those of the segment, of which it reads ``terms.*``.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._bytes = arrays["terms.bytes"]
        self._bounds = arrays["terms.bounds"]
        self._index = HashIndex.of(arrays, "terms")
        self.hashes: HashArray = arrays["terms.hashes"]
        """Sorted, ``[t]``."""
        self.by_hash: NDArray[np.int32] = arrays["terms.places"]
        """Number of the term of each hash."""
        # Queries are made of the same few thousand words.
        self._find = lru_cache(_KEPT)(self._found)

    @staticmethod
    def arrays(terms: Iterable[bytes]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the arrays of terms in the order of their numbers."""
        names = list(terms)
        bounds = np.zeros(len(names) + 1, dtype=np.int64)
        np.cumsum([len(name) for name in names], out=bounds[1:])
        yield "terms.bytes", np.frombuffer(b"".join(names), dtype=np.uint8)
        yield "terms.bounds", bounds
        yield from HashIndex.arrays("terms", hashes_of(names)).items()

    def name(self, number: int) -> bytes:
        """Return the term of a number, in UTF-8."""
        return self._bytes[int(self._bounds[number]) : int(self._bounds[number + 1])].tobytes()

    def names(self) -> list[bytes]:
        """Return all terms in the order of their numbers, in UTF-8."""
        data, bounds = self._bytes.tobytes(), self._bounds.tolist()
        return [data[begin:end] for begin, end in pairwise(bounds)]

    def __getitem__(self, term: str) -> int:
        number: int | None = self.get(term)
        if number is None:
            raise KeyError(term)
        return number

    def get(self, term: str, default: Any = None) -> Any:
        """Return the number of a term, or the default."""
        number = self._find(term) if len(term) <= _LONGEST_KEPT else self._found(term)
        return default if number is None else number

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self.names())

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _found(self, term: str) -> int | None:
        name = term.encode()
        return next(
            (number for _, number in self._index.candidates(hashes_of([name])) if self.name(number) == name),
            None,
        )
