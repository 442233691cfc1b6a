"""BM25 over sparse postings: exact scores in float64, every passage that shares a term with the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from services.retriever.backends.bm25.kernel import Kernel, Tables
from services.retriever.backends.bm25.postings import Postings
from services.retriever.backends.bm25.weighting import Weighting, length_norms
from services.retriever.domain import FloatArray, Scored

_FREQUENT: Final = 0.1


class CsrIndex:
    """Scores passages by their postings.

    Postings hold counts, and a score is worked out where it is needed: one copy on disk serves every formula
    and every k1 and b. A term of more than a tenth of the passages, where most of the time would go, has a
    row of ready scores instead (one pass of the vector unit); such rows are kept for the most frequent terms,
    as far as memory is given.

    Args:
        postings: the term counts.
        weighting: the formula.
        kernel: what runs the loops.
        dense_bytes: memory for rows of ready scores. Bytes, [0, inf).
    """

    def __init__(
        self, postings: Postings, weighting: Weighting, kernel: Kernel, *, dense_bytes: int = 0
    ) -> None:
        self._postings = postings
        self._kernel = kernel
        frequencies = postings.frequencies
        frequent = np.flatnonzero(frequencies > _FREQUENT * len(postings))
        frequent = frequent[np.argsort(-frequencies[frequent], kind="stable")]
        frequent = frequent[: dense_bytes // (8 * max(1, len(postings)))]
        self._tables = Tables(
            slots=np.full(len(frequencies), -1, dtype=np.int32),
            dense=np.zeros((len(frequent), len(postings))),
            bounds=postings.bounds,
            rows=postings.rows,
            counts=postings.counts,
            idf=weighting.idf(frequencies, len(postings)),
            norms=length_norms(weighting, postings.lengths),
            gain=weighting.gain,
        )
        for slot, number in enumerate(frequent.tolist()):
            kernel.accumulate(self._tables, np.array([number]), self._tables.dense[slot])
            self._tables.slots[number] = slot

    def search(self, tokens: Sequence[str], n: int) -> Scored:
        """The best ``min(n, passages)`` for the tokens of a query, repetitions counted each time."""
        return self._kernel.select(self.scores(tokens), n)

    def scores(self, tokens: Sequence[str]) -> FloatArray:
        """Score of every passage, ``[n]``; 0 where no token is in it."""
        scores = np.zeros(len(self._postings))
        self._kernel.accumulate(self._tables, self._postings.numbers(tokens), scores)
        return scores
