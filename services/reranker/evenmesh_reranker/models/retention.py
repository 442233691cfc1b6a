"""Removal of model versions that nothing needs, while any process may be loading one.

A version that nothing needs is marked first, and removed once it has been marked for long enough: a process
that found it before has loaded it by then. Loading takes the mark away, and so does every process for what
it serves. A version is withdrawn before it is removed: no process can promote it any more. It is renamed out
of ``versions``, or loses its manifest, before its files are deleted, so that no process sees a part of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from datetime import timedelta
from functools import partial
from typing import Final, Protocol, TypeVar

from evenmesh_reranker.domain import Scope
from evenmesh_reranker.models.manifest import Manifest
from evenmesh_reranker.models.ports import Pointers, Promotions, VersionStore
from evenmesh_reranker.models.store import Pointer

LOADING: Final = timedelta(hours=1)
"""Time that an unneeded version stays: longer than any process takes to load it."""

_log = logging.getLogger("evenmesh.reranker.models")
T = TypeVar("T")


class _Run(Protocol):
    """Runs a function in a thread."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


def needed(manifests: Mapping[str, Manifest], pointers: Mapping[Scope, Pointer], keep: int) -> Set[str]:
    """Return the versions to keep.

    These are, for each scope, the served version, the ``keep`` versions served before it and the ``keep``
    newest of the others; and the base of every adapter among all these.

    Args:
        manifests: all versions by name.
        pointers: the served versions by scope.
        keep: [1, inf).
    """
    wanted: set[str] = set()
    for pointer in pointers.values():
        wanted |= {one for one in (pointer.serving, *pointer.history[:keep]) if one is not None}
    others: dict[Scope, list[Manifest]] = {}
    for manifest in manifests.values():
        if manifest.version not in wanted:
            others.setdefault(manifest.lineage.scope, []).append(manifest)
    for found in others.values():
        found.sort(key=lambda one: (one.created_at, one.version), reverse=True)
        wanted |= {one.version for one in found[:keep]}
    bases = {manifests[one].lineage.base for one in wanted if one in manifests}
    return wanted | (bases - {""})


async def prune(
    store: VersionStore,
    promotions: Promotions,
    *,
    keep: int,
    in_memory: Iterable[str] = (),
    grace: timedelta = LOADING,
    run: _Run = asyncio.to_thread,
) -> list[str]:
    """Mark unneeded versions, remove those marked for ``grace``, and return the removed ones.

    Nothing is removed while a pointer cannot be read; a version without a readable manifest never is.

    Args:
        store: the versions.
        promotions: which of them are promoted.
        keep: see :func:`needed`.
        in_memory: versions that the caller serves, whatever the pointers say.
        grace: time that a version stays marked.
        run: runs what takes long in a thread.

    Raises:
        OSError: the disk.
        ManifestError: the store does not answer.
        Unavailable: the promotions cannot be read.
    """
    served = set(in_memory)
    # First and without the promotions: a process that cannot read these still serves.
    marked = await run(partial(_unmark, store, served))
    manifests = await run(partial(store.manifests, {}))
    pointers, problems = await promotions.pointers()
    if problems:
        _log.error("no version is removed, because a pointer cannot be read: %s", problems[0])
        return []
    kept = needed(manifests, pointers, keep) | served
    ripe = await run(partial(_mark, store, set(manifests), kept, marked, grace))
    if not ripe:
        return []

    def unneeded(now: Pointers) -> list[str]:
        still = needed(manifests, now, keep) | served
        return [version for version in ripe if version not in still]

    async with promotions.withdrawing(unneeded) as withdrawn:
        return [version for version in withdrawn if await run(partial(store.remove, version))]


def _unmark(store: VersionStore, served: Set[str]) -> Set[str]:
    """Unmark versions that this process serves; return the others that are marked."""
    marked = set(store.marks())
    for version in sorted(served & marked):
        store.unmark(version)
    return marked - served


def _mark(
    store: VersionStore, there: Set[str], kept: Set[str], marked: Set[str], grace: timedelta
) -> list[str]:
    """Mark what is not kept, unmark what is, and return what has been marked for ``grace``."""
    for version in sorted(kept & marked):
        store.unmark(version)
    return [version for version in sorted(there - kept) if store.mark(version) >= grace]
