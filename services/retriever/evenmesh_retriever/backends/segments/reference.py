"""Search segments with the reference engine: ``rank_bm25`` gets their passages as one list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenmesh_retriever.backends.bm25.postings import Postings, build
from evenmesh_retriever.backends.bm25.reference import RankBm25Index
from evenmesh_retriever.backends.bm25.weighting import Okapi, Weighting
from evenmesh_retriever.backends.segments.snapshot import OfVersion, SegmentSnapshot
from evenmesh_retriever.backends.selection import best
from evenmesh_retriever.domain import Filter, Scored, Unranked
from evenmesh_retriever.ports import Snapshot


def index(snapshot: Snapshot, weighting: Weighting) -> ReferenceIndex | None:
    """Return the index of a version; None if its terms are missing or come from another analyzer version."""
    if not isinstance(snapshot, SegmentSnapshot) or not isinstance(weighting, Okapi):
        return None
    if any(view.segment.manifest.analyzer != snapshot.info.analyzer for view in snapshot.views):
        return None
    return ReferenceIndex(snapshot, weighting)


class ReferenceIndex(OfVersion):
    """``rank_bm25`` over the passages of one version.

    Args:
        snapshot: the version.
        weighting: k1 and b.
    """

    def __init__(self, snapshot: SegmentSnapshot, weighting: Okapi) -> None:
        super().__init__(snapshot)
        self._rows = snapshot.rows()
        places = np.searchsorted(snapshot.offsets, self._rows, side="right") - 1
        names = [view.segment.terms.names() for view in snapshot.views]

        def tokens(place: int, row: int) -> list[str]:
            postings: Postings = snapshot.views[place].segment.postings
            part = slice(int(postings.row_bounds[row]), int(postings.row_bounds[row + 1]))
            counted = zip(postings.row_terms[part].tolist(), postings.row_counts[part].tolist(), strict=True)
            return [names[place][number].decode() for number, count in counted for _ in range(count)]

        local = self._rows - snapshot.offsets[places]
        self._index = RankBm25Index(
            build(tokens(place, row) for place, row in zip(places.tolist(), local.tolist(), strict=True)),
            weighting,
        )

    def search(self, tokens: Sequence[str], n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` of the passages that may be found, or all of them.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        found = self.scores(tokens, where)
        ranked = best(found.scores, n)
        return Scored(found.rows[ranked.rows], ranked.scores)

    def scores(self, tokens: Sequence[str], where: Filter | None = None) -> Unranked:
        """Return all of the passages that may be found, by ascending id; raises as :meth:`search`."""
        may = [
            np.ones(len(view.segment), dtype=np.bool_) if mask is None else mask
            for view, mask in zip(self._snapshot.views, self._snapshot.allowed(where), strict=True)
        ]
        allowed = np.flatnonzero(np.concatenate([np.empty(0, dtype=np.bool_), *may])[self._rows])
        return Unranked(self._rows[allowed], self._index.scores(tokens)[allowed])
