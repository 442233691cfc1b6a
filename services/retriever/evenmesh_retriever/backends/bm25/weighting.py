"""Compute the BM25 formulas: the weights of terms and counts.

score(q, d) = sum over the tokens t of q, in their order, of idf(t) * part(tf(t, d), |d|)

Everything here is a pure function of the statistics of the whole collection: how many passages there are, how
many hold a term, and how long passages are on average.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from evenmesh_retriever.domain import FloatArray, IntArray

_EPSILON: Final = 0.25


@dataclass(frozen=True, slots=True)
class Weighting(ABC):
    """One formula with its parameters; what is here is BM25 as most formulas have it.

    Attributes:
        k1: saturation of counts, [0, 100].
        b: normalisation by length, [0, 1].
    """

    k1: float = 1.5
    b: float = 0.75

    @property
    def gain(self) -> float:
        """Constant factor of every part: k1 + 1, as Robertson's formula has it."""
        return self.k1 + 1

    @property
    def lift(self) -> float:
        """What BM25L adds to counts that are relative to length; 0 in all others."""
        return 0.0

    @property
    def absent(self) -> float:
        """The part of a count of 0."""
        return 0.0

    def mean_idf(self, frequencies: IntArray, num_passages: int) -> float:
        """Return what :meth:`idf` needs of all terms of a collection, in order of first appearance."""
        return 0.0

    @abstractmethod
    def idf(self, frequencies: IntArray, num_passages: int, mean: float) -> FloatArray:
        """Weight of terms from the number of passages each is in, ``[t]``."""

    def parts(self, counts: FloatArray, norms: FloatArray) -> FloatArray:
        """Return what counts are worth in passages of some :meth:`norms`; the two are broadcast together.

        absent + tf * gain / (tf + norm).
        """
        return self.absent + _saturated(counts * self.gain, counts + norms)

    def norms(self, lengths: FloatArray, average: float) -> FloatArray:
        """Return the length normalisation for passages of ``lengths`` tokens with mean ``average``.

        k1 * (1 - b + b * |d| / avgdl).
        """
        return self.k1 * _relative(self.b, lengths, average)


@dataclass(frozen=True, slots=True)
class Okapi(Weighting):
    """``rank_bm25.BM25Okapi``, bit for bit.

    idf = ln(n - df + 0.5) - ln(df + 0.5); where that is negative, a quarter of the mean idf of all terms. The
    floor is often larger than the idf of ordinary words (about 2.1 on English text), so that a word of most
    passages may outweigh a rare one: it is what the reference does.
    """

    def mean_idf(self, frequencies: IntArray, num_passages: int) -> float:
        """Mean idf of all terms before the floor; terms in the order they are first seen."""
        if not len(frequencies):
            return 0.0
        values, places = np.unique(frequencies, return_inverse=True)
        # accumulate adds one by one, as the reference does; sum would add pairwise.
        return float(np.add.accumulate(_okapi_idf(values, num_passages)[places])[-1]) / len(frequencies)

    def idf(self, frequencies: IntArray, num_passages: int, mean: float) -> FloatArray:
        """Weight of terms, ``[t]``."""
        idf = _okapi_idf(frequencies, num_passages)
        idf[idf < 0] = _EPSILON * mean
        return idf


@dataclass(frozen=True, slots=True)
class Lucene(Weighting):
    """Lucene's BM25Similarity: no factor k1 + 1, and an idf that is never negative.

    idf = ln(1 + (n - df + 0.5) / (df + 0.5)).

    Kamphuis, de Vries, Boytsov and Lin, "Which BM25 Do You Mean?", ECIR 2020, table 1, "Lucene (accurate)".
    """

    k1: float = 1.2

    @property
    def gain(self) -> float:
        """No factor."""
        return 1.0

    def idf(self, frequencies: IntArray, num_passages: int, mean: float) -> FloatArray:
        """Weight of terms, ``[t]``, (0, inf)."""
        odds = (num_passages - frequencies + 0.5) / (frequencies + 0.5)
        idf: FloatArray = np.log1p(odds)
        return idf


@dataclass(frozen=True, slots=True)
class PlusWeighting(Weighting):
    """BM25+: a term that is there is worth ``delta`` at least, however long the passage.

    idf = ln((n + 1) / df). As in ``rank_bm25.BM25Plus``, ``delta`` counts for every known token of the query,
    whether the passage has it or not: it adds the same to all passages.

    Lv and Zhai, "Lower-bounding term frequency normalization", CIKM 2011, equation 8.
    """

    delta: float = 1.0

    @property
    def absent(self) -> float:
        """``delta``."""
        return self.delta

    def idf(self, frequencies: IntArray, num_passages: int, mean: float) -> FloatArray:
        """Weight of terms, ``[t]``, (0, inf)."""
        return np.array([math.log((num_passages + 1) / df) for df in frequencies.tolist()])


@dataclass(frozen=True, slots=True)
class LongWeighting(Weighting):
    """BM25L as ``rank_bm25.BM25L`` has it: counts relative to length, lifted by ``delta``.

    idf = ln(n + 1) - ln(df + 0.5). The package multiplies by tf once more than the paper does, so that a part
    grows with tf without bound; ours is the package's.

    Lv and Zhai, "When documents are very long, BM25 fails!", SIGIR 2011.
    """

    delta: float = 0.5

    @property
    def lift(self) -> float:
        """``delta``."""
        return self.delta

    def idf(self, frequencies: IntArray, num_passages: int, mean: float) -> FloatArray:
        """Weight of terms, ``[t]``, (0, inf)."""
        last = math.log(num_passages + 1)
        return np.array([last - math.log(df + 0.5) for df in frequencies.tolist()])

    def parts(self, counts: FloatArray, norms: FloatArray) -> FloatArray:
        """tf * (k1 + 1) * (c + delta) / (k1 + c + delta), where c = tf / norm."""
        relative = counts / norms
        return counts * self.gain * (relative + self.delta) / (self.k1 + relative + self.delta)

    def norms(self, lengths: FloatArray, average: float) -> FloatArray:
        """1 - b + b * |d| / avgdl; of passages without a token where b = 1, of which nothing is asked, 1."""
        relative = _relative(self.b, lengths, average)
        return np.where(relative > 0, relative, 1.0)


def average_length(total_tokens: int, num_passages: int) -> float:
    """Mean length of passages, in tokens; 1 where there is no token."""
    return total_tokens / num_passages if total_tokens else 1.0


def _okapi_idf(frequencies: IntArray, num_passages: int) -> FloatArray:
    # math.log, as the reference has it: np.log may differ in the last bit.
    return np.array([math.log(num_passages - df + 0.5) - math.log(df + 0.5) for df in frequencies.tolist()])


def _relative(b: float, lengths: FloatArray, average: float) -> FloatArray:
    relative: FloatArray = 1 - b + b * lengths / average
    return relative


def _saturated(worth: FloatArray, whole: FloatArray) -> FloatArray:
    """``worth / whole``, and 0 where both are: k1 = 0 and no such term, or a passage without a token."""
    nothing = np.zeros(np.broadcast_shapes(worth.shape, whole.shape))
    return np.divide(worth, whole, out=nothing, where=whole > 0)
