"""What a new version takes over from the one before, and what is new in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from services.retriever.backends.local.records import Record, RecordFile, record_of
from services.retriever.domain import IntArray, Passage


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The passages of a new version, by ascending id, in terms of an old one.

    Attributes:
        sources: for each row, its row in the old version, or the size of that plus ``j`` for ``passages[j]``.
        passages: those that are new or replace one of the same id.
        records: their stored forms.
        added: passages whose id is new.
        replaced: passages that replace another of the same id.
        unchanged: passages given that were there already, equal in every field.
        deleted: passages removed.
        missing: distinct ids to be removed that were not there.
    """

    sources: IntArray
    passages: Sequence[Passage]
    records: Sequence[Record]
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    deleted: int = 0
    missing: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the new version would be the old one."""
        return not (self.added or self.replaced or self.deleted)


def ingest(base: RecordFile | None, passages: Sequence[Passage]) -> Change:
    """Adds or replaces passages by id; their ids are unique."""
    ids = base.ids() if base is not None else []
    row_of = {one: row for row, one in enumerate(ids)}
    new: list[Passage] = []
    records: list[Record] = []
    replaced: set[int] = set()
    unchanged = 0
    for passage in passages:
        record = record_of(passage)
        row = row_of.get(passage.id)
        if row is not None and base is not None and base.holds(row, record):
            unchanged += 1
            continue
        if row is not None:
            replaced.add(row)
        new.append(passage)
        records.append(record)
    places = [(one, row) for row, one in enumerate(ids) if row not in replaced]
    places += [(passage.id, len(ids) + j) for j, passage in enumerate(new)]
    places.sort()
    return Change(
        np.array([source for _, source in places], dtype=np.int64),
        new,
        records,
        added=len(new) - len(replaced),
        replaced=len(replaced),
        unchanged=unchanged,
    )


def deletion(base: RecordFile, ids: Collection[str]) -> Change:
    """Removes passages by id; unknown ones are counted."""
    gone = set(ids)
    sources = [row for row, one in enumerate(base.ids()) if one not in gone]
    deleted = len(base) - len(sources)
    return Change(np.array(sources, dtype=np.int64), [], [], deleted=deleted, missing=len(gone) - deleted)
