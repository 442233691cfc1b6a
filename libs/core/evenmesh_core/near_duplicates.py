"""Texts that say nearly the same, by one-permutation MinHash, for the candidates of one query."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from evenmesh_core.arrays import IntArray

NEAR: Final = 0.75
"""Estimated Jaccard similarity from which two texts are nearly the same."""
MAX_WORDS: Final = 512
"""Words of a text that are looked at, from its beginning."""

_SHINGLE: Final = 3
_BINS: Final = 64
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_EMPTY: Final = np.uint64(2**64 - 1)


def near_duplicates(texts: Sequence[str]) -> IntArray:
    """Return a number for each text: the same one for texts that say nearly the same.

    Texts are compared without case and with white space as one space. Similarity is the Jaccard index of
    their sets of runs of three words, estimated by the smallest hashes in 64 bins; texts from :data:`NEAR`
    belong together, and so do texts that a chain of such pairs joins. Texts without words are like no other.
    Takes time linear in the words, of which :data:`MAX_WORDS` of each text count, and quadratic in the number
    of texts.

    Args:
        texts: n texts.

    Returns:
        Int vector [n] of numbers from 0, in the order of first appearance.

    Source: Li et al. 2012, of one hash in place of one for each bin.
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    known: dict[str, int] = {}
    words = [text.casefold().split()[:MAX_WORDS] for text in texts]
    signatures = np.stack([_signature(some, known) for some in words])
    filled = signatures != _EMPTY
    first: list[int] = []
    second: list[int] = []
    for row in range(1, len(texts)):
        either = (filled[:row] | filled[row]).sum(axis=1)
        same = ((signatures[:row] == signatures[row]) & filled[row]).sum(axis=1)
        alike = np.flatnonzero(same >= NEAR * np.maximum(either, 1)).tolist()
        first += [row] * len(alike)
        second += alike
    pairs = coo_array((np.ones(len(first)), (first, second)), shape=(len(texts), len(texts)))
    _, labels = connected_components(pairs, directed=False)
    return np.asarray(labels, dtype=np.int64)


def _signature(words: Sequence[str], known: dict[str, int]) -> NDArray[np.uint64]:
    """Return the smallest hash in each bin; ``known`` keeps the hashes of words."""
    found = np.full(_BINS, _EMPTY)
    if not words:
        return found
    hashes = np.fromiter(
        (known.get(word) or known.setdefault(word, zlib.crc32(word.encode()) + 1) for word in words),
        np.uint64,
        count=len(words),
    )
    runs = max(1, len(words) - _SHINGLE + 1)
    shingles = np.zeros(runs, dtype=np.uint64)
    for step in range(min(_SHINGLE, len(words))):
        shingles = (shingles + hashes[step : step + runs]) * _MIX
        shingles ^= shingles >> np.uint64(29)
    np.minimum.at(found, (shingles * _MIX >> np.uint64(58)).astype(np.int64), shingles)
    return found
