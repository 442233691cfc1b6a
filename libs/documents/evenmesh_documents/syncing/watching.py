"""Sync again and again, whenever what a source has may have changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from evenmesh_documents.origins.found import Found


@dataclass(slots=True)
class Watched:
    """What is known of a source since its last sync.

    Attributes:
        seen: address, stamp and state of each of its files then; None before the first sync and after one
            that failed.
        due: when a mark of a missing file is due; None for never.
    """

    seen: frozenset[tuple[str, str, str]] | None = field(default=None)
    due: datetime | None = None

    def may_differ(self, files: Sequence[Found], now: datetime) -> bool:
        """Return whether a sync may find something to do.

        A file without a stamp may always have changed.
        """
        if self.seen is None or (self.due is not None and now >= self.due):
            return True
        return any(not one.stamp and not one.reason for one in files) or _states(files) != self.seen

    def synced(self, files: Sequence[Found], due: datetime | None) -> None:
        """Note that a sync took these files."""
        self.seen, self.due = _states(files), due

    def failed(self) -> None:
        """Note that a sync failed: the next round tries again."""
        self.seen = None


def _states(files: Sequence[Found]) -> frozenset[tuple[str, str, str]]:
    return frozenset((one.address, one.stamp, one.reason) for one in files)
