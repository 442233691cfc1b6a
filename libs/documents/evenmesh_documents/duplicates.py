"""Find passages that say the same: exactly, or nearly (MinHash)."""

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
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
# Multiply-shift hashing of 32 bits (Dietzfelbinger 1996), as always the same.
_FACTORS, _TERMS = np.random.default_rng(1997).integers(1 << 64, size=(2, _PERMUTATIONS), dtype=np.uint64)
_SHIFT: Final = np.uint64(32)


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
    """Remembers passages by hashes and signatures, a few kB each, not by their texts.

    Texts are compared without case and with white space as one space. Similarity is the Jaccard index of the
    sets of all runs of three words, estimated by MinHash with 64 permutations (Broder, 1997), standard error
    at most 0.063; pairs to compare come from locality-sensitive hashing, which misses 1 % of those at 0.8.

    Args:
        examples: how many pairs of near duplicates are kept to be shown.
    """

    def __init__(self, examples: int = 5) -> None:
        self._most = examples
        self._texts: dict[bytes, set[str]] = {}
        self._values: dict[str, NDArray[np.uint32]] = {}
        self._by_band: dict[tuple[int, bytes], list[str]] = {}
        self._dropped = self._near = 0
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
        providers = self._texts.setdefault(digest, set())
        if provider in providers:
            self._dropped += 1
            return True
        known = bool(providers)
        providers.add(provider)
        if not known and len(words) >= _LEAST_WORDS:
            self._compare(passage_id, words)
        return False

    def _compare(self, passage_id: str, words: Sequence[str]) -> None:
        shingles = {" ".join(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)}
        values = _signature(shingles)
        bands, rows = _BANDS
        keys = [(band, values[rows * band : rows * (band + 1)].tobytes()) for band in range(bands)]
        compared = {one for key in keys for one in self._by_band.get(key, ())}
        similar = [(float(np.mean(self._values[one] == values)), one) for one in compared]
        similarity, nearest = max(similar, default=(0.0, ""))
        if similarity >= NEAR:
            self._near += 1
            if len(self._examples) < self._most:
                self._examples.append((passage_id, nearest))
            # The earlier one stands for both, so many alike cost no more than one.
            return
        self._values[passage_id] = values
        for key in keys:
            self._by_band.setdefault(key, []).append(passage_id)

    def found(self) -> Duplicates:
        """Return what was found until now."""
        mirrored = sum(len(providers) > 1 for providers in self._texts.values())
        return Duplicates(self._dropped, mirrored, self._near, tuple(self._examples))


def _signature(shingles: Collection[str]) -> NDArray[np.uint32]:
    """Return the smallest hash of all shingles by each permutation.

    Two sets have the same one with their Jaccard index as probability.
    """
    hashes = np.fromiter((zlib.crc32(one.encode()) for one in shingles), np.uint64, count=len(shingles))
    smallest: NDArray[np.uint32] = (
        ((hashes[:, None] * _FACTORS + _TERMS) >> _SHIFT).min(axis=0).astype(np.uint32)
    )
    return smallest
