"""Find passages that say the same: exactly, or nearly (MinHash)."""

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from sys import intern
from typing import Final

import numpy as np
from numpy.typing import NDArray

NEAR: Final = 0.8
"""Jaccard similarity from which two passages are nearly the same."""
SHINGLE: Final = 3
"""Words of a shingle."""

_PERMUTATIONS: Final = 64
_BANDS: Final = (12, 5)
"""Bands, and rows of each: a pair of similarity 0.8 is compared with probability 1 - (1 - 0.8⁵)¹² = 0.99."""
_LEAST_WORDS: Final = 12
"""Passages of fewer words are alike by chance."""
_LEAST_ROWS: Final = 1_024
_MOST_ROWS: Final = 1 << 20
"""Most passages that later ones are compared with."""
_SLOTS: Final = 4
"""Passages that are remembered of one band's hash, and slots of a band for each passage."""
# Multiply-shift hashing of 32 bits (Dietzfelbinger 1996), as always the same.
_RANDOM: Final = np.random.default_rng(1997)
_FACTORS, _TERMS = _RANDOM.integers(1 << 64, size=(2, _PERMUTATIONS), dtype=np.uint64)
_BAND_FACTORS: Final = _RANDOM.integers(1 << 64, size=_BANDS[1], dtype=np.uint64) | np.uint64(1)
_SHIFT: Final = np.uint64(32)
_BAND_OF: Final = np.arange(_BANDS[0])[:, None]
_PROBES: Final = np.arange(_SLOTS, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What was found among the passages that were added.

    Attributes:
        dropped: passages that repeat a text of the same provider.
        mirrored: texts that several providers have; each of them keeps its passage.
        near: passages that are nearly the same as one before, of any provider.
        examples: some of those: id, and id of the earlier one.
    """

    dropped: int
    mirrored: int
    near: int
    examples: Sequence[tuple[str, str]]


class DuplicateFinder:
    """Remembers passages by hashes and signatures, some hundred bytes each, not by their texts.

    Texts are compared without case and with white space as one space. Similarity is the Jaccard index of the
    sets of all runs of three words, estimated by MinHash with 64 permutations (Broder, 1997), standard error
    at most 0.063; pairs to compare come from locality-sensitive hashing, which misses 1 % of those at 0.8,
    and more where many passages share a part. Near ones are looked for among the first million.

    Args:
        examples: how many pairs of near duplicates are kept to be shown.
    """

    def __init__(self, examples: int = 5) -> None:
        self._most = examples
        # Nearly every text has one provider, and a set takes more than the rest of what is remembered of it.
        self._texts: dict[bytes, str | set[str]] = {}
        self._near_ones = _Signatures()
        self._dropped = self._near = self._mirrored = 0
        self._examples: list[tuple[str, str]] = []

    def repeats(self, passage_id: str, provider: str, text: str) -> bool:
        """Return whether the provider has said this text before; else remember it.

        Args:
            passage_id: id of the passage, not used before.
            provider: who provides it; empty if unknown.
            text: what it says.
        """
        words = text.casefold().split()
        digest = blake2b(" ".join(words).encode(), digest_size=16).digest()
        known = self._texts.get(digest)
        if known is None:
            self._texts[digest] = intern(provider)
            if len(words) >= _LEAST_WORDS:
                self._compare(passage_id, words)
            return False
        if provider == known or (isinstance(known, set) and provider in known):
            self._dropped += 1
            return True
        if isinstance(known, set):
            known.add(provider)
        else:
            self._texts[digest] = {known, provider}
            self._mirrored += 1
        return False

    def _compare(self, passage_id: str, words: Sequence[str]) -> None:
        shingles = {" ".join(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)}
        values = _signature(shingles)
        similarity, nearest = self._near_ones.nearest(values)
        if similarity >= NEAR:
            self._near += 1
            if len(self._examples) < self._most:
                self._examples.append((passage_id, nearest))
            # The earlier one stands for both, so many alike cost no more than one.
            return
        self._near_ones.add(passage_id, values)

    def found(self) -> Duplicates:
        """Return what was found until now."""
        return Duplicates(self._dropped, self._mirrored, self._near, tuple(self._examples))


class _Signatures:
    """Signatures of passages, found by any band of equal values; arrays that double when they are full."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._values = np.zeros((0, _PERMUTATIONS), np.uint16)
        self._table = np.zeros((0, 0), np.int32)

    def nearest(self, values: NDArray[np.uint16]) -> tuple[float, str]:
        """Return similarity and id of the most similar passage with an equal band; 0 and empty for none."""
        if not self._ids:
            return 0.0, ""
        found = self._table[_BAND_OF, self._slots(values)].ravel()
        rows = found[found >= 0]
        if not len(rows):
            return 0.0, ""
        similar = (self._values[rows] == values).mean(axis=1)
        best = int(similar.argmax())
        return float(similar[best]), self._ids[rows[best]]

    def add(self, passage_id: str, values: NDArray[np.uint16]) -> None:
        """Remember a passage, while there are not too many."""
        row = len(self._ids)
        if row == _MOST_ROWS:
            return
        if row == len(self._values):
            self._grow()
        self._ids.append(passage_id)
        self._values[row] = values
        self._place(row)

    def _grow(self) -> None:
        count = len(self._values)
        values = np.zeros((max(_LEAST_ROWS, 2 * count), _PERMUTATIONS), np.uint16)
        values[:count] = self._values
        self._values = values
        self._table = np.full((_BANDS[0], _SLOTS * len(values)), -1, np.int32)
        for row in range(count):
            self._place(row)

    def _place(self, row: int) -> None:
        """Put a passage into the first free slot of each band; into none where all are taken."""
        slots = self._slots(self._values[row])
        free = self._table[_BAND_OF, slots] < 0
        bands = np.flatnonzero(free.any(axis=1))
        self._table[bands, slots[bands, free[bands].argmax(axis=1)]] = row

    def _slots(self, values: NDArray[np.uint16]) -> NDArray[np.uint64]:
        """Return the slots of a passage, ``[band, slot]``."""
        bands, rows = _BANDS
        mixed = (values[: bands * rows].reshape(bands, rows) * _BAND_FACTORS).sum(axis=1, dtype=np.uint64)
        first = (mixed >> _SHIFT) & np.uint64(self._table.shape[1] - 1)
        slots: NDArray[np.uint64] = (first[:, None] + _PROBES) & np.uint64(self._table.shape[1] - 1)
        return slots


def _signature(shingles: Collection[str]) -> NDArray[np.uint16]:
    """Return the lower half of the smallest hash of all shingles by each permutation.

    Two sets have the same one with their Jaccard index as probability, and by chance with 1 in 65,536.
    """
    hashes = np.fromiter((zlib.crc32(one.encode()) for one in shingles), np.uint64, count=len(shingles))
    smallest: NDArray[np.uint64] = ((hashes[:, None] * _FACTORS + _TERMS) >> _SHIFT).min(axis=0)
    return smallest.astype(np.uint16)
