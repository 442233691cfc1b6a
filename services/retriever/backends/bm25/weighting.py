"""The two BM25 formulas: what a term and a count are worth.

score(q, d) = sum over the tokens t of q of idf(t) * gain * tf / (tf + k1 * (1 - b + b * |d| / avgdl))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from services.retriever.domain import FloatArray, IntArray

_EPSILON: Final = 0.25


class Weighting(Protocol):
    """One formula with its parameters."""

    @property
    def k1(self) -> float:
        """Saturation of counts, (0, 100]."""

    @property
    def b(self) -> float:
        """Normalisation by length, [0, 1]."""

    @property
    def gain(self) -> float:
        """Constant factor of every score."""

    def idf(self, frequencies: IntArray, num_passages: int) -> FloatArray:
        """Weight of each term from the number of passages it is in, ``[t]``."""


@dataclass(frozen=True, slots=True)
class Okapi:
    """``rank_bm25.BM25Okapi``, bit for bit.

    idf = ln(n - df + 0.5) - ln(df + 0.5); where that is negative, a quarter of the mean idf of all terms. The
    floor is often larger than the idf of ordinary words (about 2.1 on English text), so that a word of most
    passages may outweigh a rare one: it is what the reference does.
    """

    k1: float = 1.5
    b: float = 0.75

    @property
    def gain(self) -> float:
        """The factor k1 + 1 of Robertson's formula."""
        return self.k1 + 1

    def idf(self, frequencies: IntArray, num_passages: int) -> FloatArray:
        """Weight of each term, ``[t]``, terms in the order they are first seen."""
        values, places = np.unique(frequencies, return_inverse=True)
        # math.log, as the reference has it: np.log may differ in the last bit.
        idf = np.array([math.log(num_passages - df + 0.5) - math.log(df + 0.5) for df in values.tolist()])[
            places
        ]
        if len(idf):
            # accumulate adds one by one, as the reference does; sum would add pairwise.
            mean = float(np.add.accumulate(idf)[-1]) / len(idf)
            idf[idf < 0] = _EPSILON * mean
        return idf


@dataclass(frozen=True, slots=True)
class Lucene:
    """Lucene's BM25Similarity: no factor k1 + 1, and an idf that is never negative.

    idf = ln(1 + (n - df + 0.5) / (df + 0.5)).

    Kamphuis, de Vries, Boytsov and Lin, "Which BM25 Do You Mean?", ECIR 2020, table 1, "Lucene (accurate)".
    """

    k1: float = 1.2
    b: float = 0.75
    gain: Final[float] = 1.0

    def idf(self, frequencies: IntArray, num_passages: int) -> FloatArray:
        """Weight of each term, ``[t]``, (0, inf)."""
        odds = (num_passages - frequencies + 0.5) / (frequencies + 0.5)
        idf: FloatArray = np.log1p(odds)
        return idf


def length_norms(weighting: Weighting, lengths: np.ndarray[tuple[int], np.dtype[np.int32]]) -> FloatArray:
    """k1 * (1 - b + b * |d| / avgdl) of each passage, ``[n]``; the reference's operations in its order."""
    total = int(lengths.sum(dtype=np.int64))
    if not total:
        return np.full(len(lengths), weighting.k1)
    average = total / len(lengths)
    relative: FloatArray = weighting.b * lengths.astype(np.float64) / average
    return weighting.k1 * (1 - weighting.b + relative)
