"""Interfaces of what keeps model versions, and of what keeps which of them is promoted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from evenmesh_reranker.domain import Scope
from evenmesh_reranker.models.manifest import Lineage, Manifest, ManifestError
from evenmesh_reranker.models.store import Draft, Pointer

Pointers = Mapping[Scope, Pointer]
"""What is promoted, by scope."""

Select = Callable[[Pointers], Sequence[str]]
"""Chooses versions by what is promoted."""


class VersionStore(Protocol):
    """Keeps immutable versions; several processes may share one.

    Its methods take long: call them in a thread. Each may raise
    :class:`evenmesh_reranker.models.manifest.StoreAwayError`, or OSError for a disk.
    """

    def write(self, lineage: Lineage) -> AbstractContextManager[Draft]:
        """Make a version of the files that the block writes into the draft's folder; none if it raises."""

    def manifests(self, known: Mapping[str, Manifest]) -> dict[str, Manifest]:
        """Return all versions with a readable manifest; those in ``known`` are not read again."""

    def has(self, version: str) -> bool:
        """Return whether there is a version of that name, whole or damaged."""

    def manifest(self, version: str) -> Manifest:
        """Read the manifest of a version; raise ManifestError if it is damaged."""

    def verified(self, version: str) -> tuple[Path, Manifest]:
        """Return a version's folder and manifest after comparing each file with the manifest.

        Raises:
            ManifestError: it is damaged.
        """

    def state(self, version: str) -> Hashable | None:
        """Return what tells that a version was changed, cheaply; () if it is gone, None if not known now."""

    def marks(self) -> Mapping[str, datetime]:
        """Return since when each version that is marked as unneeded has been (UTC)."""

    def mark(self, version: str) -> timedelta:
        """Mark a version as unneeded, and return for how long it has been marked."""

    def unmark(self, version: str) -> None:
        """Take the mark of a version away; do nothing in a store that is only readable."""

    def remove(self, version: str) -> bool:
        """Remove a version at once; return False if another process already did."""

    def tidy(self) -> None:
        """Remove what a dead process was writing or removing, once it is a day old."""


class WithdrawnError(Exception):
    """Raised when a version is to be promoted that a process is removing."""


class Promotions(Protocol):
    """Keeps which version serves each scope, for all processes that share a store of versions.

    Every method may raise Unavailable.
    """

    async def pointers(self) -> tuple[Pointers, Sequence[ManifestError]]:
        """Return all pointers by scope, and what is wrong with those that cannot be understood."""

    async def pointer(self, scope: Scope) -> Pointer:
        """Return the pointer of a scope; an empty one if nothing was promoted.

        Raises:
            ManifestError: it cannot be understood.
        """

    async def changed_at(self, scope: Scope) -> datetime | None:
        """Return when the pointer of a scope was last changed (UTC); None if it never was."""

    async def stamp(self) -> Hashable:
        """Return what changes whenever a pointer does; cheap."""

    async def replace(self, scope: Scope, before: Pointer, after: Pointer) -> bool:
        """Replace the pointer of a scope, if it still is ``before``; durable on return, False if it is not.

        Raises:
            WithdrawnError: the version is being removed.
        """

    def withdrawing(self, select: Select) -> AbstractAsyncContextManager[Sequence[str]]:
        """Yield the versions that ``select`` chooses, to be removed in the block: none is promoted meanwhile.

        ``select`` sees what is promoted at that moment. It is called once, and must be quick.
        """
