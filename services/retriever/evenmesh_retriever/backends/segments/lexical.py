"""Search segments by BM25 with the statistics of the whole collection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from evenmesh_retriever.backends.bm25 import kernel
from evenmesh_retriever.backends.bm25.kernel import Counts, QueryTokens
from evenmesh_retriever.backends.bm25.weighting import Okapi, Weighting, average_length
from evenmesh_retriever.backends.segments.selection import gathered, merged
from evenmesh_retriever.backends.segments.snapshot import OfVersion, SegmentSnapshot
from evenmesh_retriever.domain import Filter, IntArray, Scored, Unranked
from evenmesh_retriever.ports import Snapshot


def index(snapshot: Snapshot, weighting: Weighting) -> SegmentedIndex | None:
    """Return the index of a version; None if its terms are missing or come from another analyzer version."""
    if not isinstance(snapshot, SegmentSnapshot):
        return None
    if any(view.segment.manifest.analyzer != snapshot.info.analyzer for view in snapshot.views):
        return None
    return SegmentedIndex(snapshot, weighting)


class SegmentedIndex(OfVersion):
    """Scores the passages of one version.

    How many passages hold a term, and how long they are on average, is summed over segments, less what is
    gone, for each query anew. These are the integers a fresh build would count, so the scores are its scores.

    Args:
        snapshot: the version.
        weighting: the formula.
    """

    def __init__(self, snapshot: SegmentSnapshot, weighting: Weighting) -> None:
        super().__init__(snapshot)
        self._weighting = weighting

    def search(self, tokens: Sequence[str], n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` of the allowed passages, or all of them; equal scores by ascending id.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        snapshot = self._snapshot
        found = [
            kernel.search(counts, asked, n, mask)
            for counts, mask, asked in zip(
                self._counts, snapshot.allowed(where), self._asked(tokens), strict=True
            )
        ]
        return merged(found, snapshot.offsets, n, snapshot.id)

    def scores(self, tokens: Sequence[str], where: Filter | None = None) -> Unranked:
        """Return all of the passages that may be found; raises as :meth:`search`."""
        scores = [
            kernel.scores(counts, asked)
            for counts, asked in zip(self._counts, self._asked(tokens), strict=True)
        ]
        return gathered(scores, self._snapshot.allowed(where), self._snapshot.offsets)

    def _asked(self, tokens: Sequence[str]) -> list[QueryTokens]:
        """Return the query's tokens in each segment, weighted by the statistics of the whole collection."""
        snapshot = self._snapshot
        distinct = list(dict.fromkeys(tokens))
        place = {token: number for number, token in enumerate(distinct)}
        frequencies = np.zeros(len(distinct), dtype=np.int64)
        known: list[tuple[IntArray, IntArray]] = []
        for view in snapshot.views:
            terms = view.segment.terms
            found = [(p, number) for t, p in place.items() if (number := terms.get(t)) is not None]
            places, numbers = np.array(found, dtype=np.int64).reshape(-1, 2).T
            known.append((places, numbers))
            frequencies[places] += view.frequencies(numbers)
        # A token that no passage has any more is as unknown as one that none ever had.
        asked = [place[token] for token in tokens if frequencies[place[token]]]
        weights = np.zeros(len(distinct))
        some = frequencies > 0
        if some.any():
            weights[some] = self._weighting.idf(frequencies[some], len(snapshot), self._mean_idf)
        by_view = []
        for view, (places, numbers) in zip(snapshot.views, known, strict=True):
            bounds = view.segment.postings.bounds
            begins = np.zeros(len(distinct), dtype=np.int64)
            ends = np.zeros(len(distinct), dtype=np.int64)
            begins[places], ends[places] = bounds[numbers], bounds[numbers + 1]
            by_view.append(QueryTokens(begins[asked], ends[asked], weights[asked]))
        return by_view

    @cached_property
    def _mean_idf(self) -> float:
        if not isinstance(self._weighting, Okapi):  # the others do without, and all terms are many
            return 0.0
        return self._weighting.mean_idf(self._snapshot.frequencies, len(self._snapshot))

    @cached_property
    def _counts(self) -> Sequence[Counts]:
        average = average_length(self._snapshot.num_tokens, max(1, len(self._snapshot)))
        return [
            Counts.of(p.rows, p.counts, p.lengths, self._weighting, average)
            for p in (view.segment.postings for view in self._snapshot.views)
        ]
