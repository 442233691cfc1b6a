"""Choose the segments to merge: several of similar size, and those half deleted.

Sizes fall into tiers, each :data:`FAN_IN` times the one below. Merging a full tier makes one segment of the
next, so a passage is written again once for each tier: the cost of an ingest grows with the logarithm of the
collection, and so does the number of segments that a query asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FAN_IN: Final = 4
"""Segments of one tier that are merged."""
SMALLEST: Final = 100
"""Segments of fewer passages are all of the lowest tier."""
MOST_DEAD: Final = 0.3
"""Share of passages that are gone above which a segment is written anew, [0, 1]."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment that may be merged."""

    name: str
    rows: int
    """Passages on disk."""
    passages: int
    """Passages that are there."""
    kind: str
    """Only segments of one kind are merged: those whose vectors are by one encoder, or not there yet."""


def choose(candidates: Sequence[Candidate], *, max_passages: int) -> list[str]:
    """Return names of segments to be merged into one now; empty if all is well.

    Args:
        candidates: the segments that no merge has taken.
        max_passages: largest segment to be made.
    """
    for kind in sorted({one.kind for one in candidates}):
        # The small ones first, and all that are smaller than the tier that is full.
        alike = sorted(
            (one for one in candidates if one.kind == kind), key=lambda one: (one.passages, one.name)
        )
        tiers = [_tier(one.passages) for one in alike]
        for tier in sorted(set(tiers)):
            if tiers.count(tier) >= FAN_IN:
                taken, total = [], 0
                for one, its in zip(alike, tiers, strict=True):
                    if its <= tier and total + one.passages <= max_passages:
                        taken.append(one.name)
                        total += one.passages
                if len(taken) > 1:
                    return taken
    for one in candidates:
        if one.rows - one.passages > MOST_DEAD * one.rows:
            return [one.name]
    return []


def _tier(passages: int) -> int:
    tier, bound = 0, SMALLEST
    while passages >= bound:
        tier, bound = tier + 1, bound * FAN_IN
    return tier
