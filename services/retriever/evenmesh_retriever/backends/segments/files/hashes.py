"""Find byte strings without loading any: by binary search over sorted 64-bit hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.domain import IntArray

HashArray = NDArray[np.uint64]


def hashes_of(keys: Iterable[bytes]) -> HashArray:
    """Return 64 bits of BLAKE2b of each key, ``[n]``: the same on every machine."""
    return np.frombuffer(b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in keys), dtype="<u8")


class HashIndex:
    """Places of keys by their hashes. Two keys may share a hash: who asks looks whether the key is there.

    Args:
        hashes: sorted, ``[n]``.
        places: place of the key of each hash, ``[n]``.
    """

    def __init__(self, hashes: HashArray, places: NDArray[np.int32]) -> None:
        self.hashes = hashes
        self._places = places

    @staticmethod
    def arrays(name: str, hashes: HashArray) -> dict[str, NDArray[Any]]:
        """Return what :meth:`of` reads, for the keys whose hashes are given in the order of their places."""
        order = np.argsort(hashes, kind="stable")
        return {f"{name}.hashes": hashes[order], f"{name}.places": order.astype(np.int32)}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], name: str) -> HashIndex:
        """Return the index among a file's arrays."""
        return cls(arrays[f"{name}.hashes"], arrays[f"{name}.places"])

    def candidates(self, hashes: HashArray) -> Iterator[tuple[int, int]]:
        """For each hash that is there, its position among those asked for and a place that has it."""
        begins = np.searchsorted(self.hashes, hashes, side="left")
        ends = np.searchsorted(self.hashes, hashes, side="right")
        for position in np.flatnonzero(ends > begins).tolist():
            for place in self._places[begins[position] : ends[position]].tolist():
                yield position, place

    @property
    def in_order(self) -> IntArray:
        """Places in the order of their hashes."""
        return self._places.astype(np.int64)
