"""Removal of model versions that nothing needs, while any process may be loading one.

A version that nothing needs is marked first, and removed once it has been marked for long enough: a process
that found it before has loaded it by then. Loading takes the mark away. A version is renamed out of
``versions`` before its files are deleted, so that no process sees a part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from datetime import timedelta
from typing import Final

from evenmesh_reranker.domain import Scope
from evenmesh_reranker.models.manifest import Manifest
from evenmesh_reranker.models.store import ModelStore, Pointer

LOADING: Final = timedelta(hours=1)
"""Time that an unneeded version stays: longer than any process takes to load it."""

_log = logging.getLogger("evenmesh.reranker.models")


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


def prune(
    store: ModelStore, *, keep: int, in_memory: Iterable[str] = (), grace: timedelta = LOADING
) -> list[str]:
    """Mark unneeded versions, remove those marked for ``grace``, and return the removed ones.

    Nothing is removed while a pointer cannot be read; a version without a readable manifest never is.

    Args:
        store: the versions.
        keep: see :func:`needed`.
        in_memory: versions that the caller serves, whatever the pointers say.
        grace: time that a version stays marked.

    Raises:
        OSError: the disk.
    """
    manifests = store.manifests({})
    pointers, problems = store.pointers()
    if problems:
        _log.error("no version is removed, because a pointer cannot be read: %s", problems[0])
        return []
    kept = needed(manifests, pointers, keep) | set(in_memory)
    removed = []
    for version in sorted(manifests):
        if version in kept:
            store.unmark(version)
        elif store.mark(version) >= grace and store.remove(version):
            removed.append(version)
    return removed
