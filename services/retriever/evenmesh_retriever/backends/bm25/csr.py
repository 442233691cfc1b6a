"""Search by BM25 over sparse postings: exact float64 scores of every passage that shares a query term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenmesh_retriever.backends.bm25 import kernel
from evenmesh_retriever.backends.bm25.kernel import Counts, MaskArray, QueryTokens
from evenmesh_retriever.backends.bm25.postings import Postings
from evenmesh_retriever.backends.bm25.weighting import Weighting, average_length
from evenmesh_retriever.domain import FloatArray, IntArray, Scored


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What a formula knows of a collection, whatever part of it is searched.

    Attributes:
        num_passages: passages of the collection.
        average_length: tokens of a passage on average.
        frequencies: passages of the collection that hold each of the terms searched, ``[t]``.
        mean_idf: mean idf of all its terms, for formulas that use it.
    """

    num_passages: int
    average_length: float
    frequencies: IntArray
    mean_idf: float

    @classmethod
    def of(cls, postings: Postings, weighting: Weighting) -> Statistics:
        """Return those of a collection that is these postings."""
        size, frequencies = len(postings), postings.frequencies
        return cls(
            size,
            average_length(int(postings.lengths.sum(dtype=np.int64)), size),
            frequencies,
            weighting.mean_idf(frequencies, size),
        )


class CsrIndex:
    """Scores passages by their postings.

    Postings hold counts, and a score is worked out where it is needed: one copy on disk serves every formula
    and every k1 and b, and statistics that change with every ingest.

    Args:
        postings: the term counts.
        weighting: the formula.
        statistics: of the collection these postings are a part of; None if they are all of it.
    """

    def __init__(
        self,
        postings: Postings,
        weighting: Weighting,
        statistics: Statistics | None = None,
    ) -> None:
        self._postings = postings
        self._weighting = weighting
        self._statistics = statistics or Statistics.of(postings, weighting)
        self._counts = Counts.of(
            postings.rows, postings.counts, postings.lengths, weighting, self._statistics.average_length
        )

    def search(self, tokens: Sequence[str], n: int, allowed: MaskArray | None = None) -> Scored:
        """Return the best ``n`` passages for the tokens of a query, repetitions counted each time.

        ``allowed`` says of each passage whether it may be found; None: all may.
        """
        return kernel.search(self._counts, self._asked(tokens), n, allowed)

    def scores(self, tokens: Sequence[str]) -> FloatArray:
        """Score of every passage, ``[n]``."""
        return kernel.scores(self._counts, self._asked(tokens))

    def _asked(self, tokens: Sequence[str]) -> QueryTokens:
        numbers = self._postings.numbers(tokens)
        bounds = self._postings.bounds
        statistics = self._statistics
        idf = self._weighting.idf(
            statistics.frequencies[numbers], statistics.num_passages, statistics.mean_idf
        )
        return QueryTokens(bounds[numbers], bounds[numbers + 1], idf)
