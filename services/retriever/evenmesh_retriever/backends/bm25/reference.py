"""Search with the reference engine, ``rank_bm25`` itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rank_bm25 import BM25Okapi

from evenmesh_retriever.backends.bm25.postings import Postings
from evenmesh_retriever.backends.bm25.weighting import Okapi
from evenmesh_retriever.backends.selection import best
from evenmesh_retriever.domain import FloatArray, Scored


class RankBm25Index:
    """``rank_bm25.BM25Okapi`` behind the port; only its unstable order of equal scores is replaced.

    Args:
        postings: the term counts; the passages are read back from them, each token as often as it came.
        weighting: k1 and b.
    """

    def __init__(self, postings: Postings, weighting: Okapi) -> None:
        self._size = len(postings)
        names = list(postings.terms)
        bounds = postings.row_bounds.tolist()
        corpus = [
            [
                names[number]
                for number, count in zip(
                    postings.row_terms[begin:end].tolist(),
                    postings.row_counts[begin:end].tolist(),
                    strict=True,
                )
                for _ in range(count)
            ]
            for begin, end in pairwise(bounds)
        ]
        # It divides by the number of tokens and of terms.
        self._index = BM25Okapi(corpus, k1=weighting.k1, b=weighting.b) if names else None

    def search(self, tokens: Sequence[str], n: int) -> Scored:
        """Return the best ``min(n, passages)`` for the tokens of a query."""
        return best(self.scores(tokens), n)

    def scores(self, tokens: Sequence[str]) -> FloatArray:
        """Score of every passage, ``[n]``."""
        if self._index is None:
            return np.zeros(self._size)
        return np.asarray(self._index.get_scores(tokens), dtype=np.float64)
