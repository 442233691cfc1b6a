"""Which model versions are kept, and the removal of the others, while any process may be loading one.

A version that nothing needs is marked first, and removed when it was marked for long enough: whoever found
it before has loaded it by then. Loading takes the mark away, so what is looked for again is kept for as long
again. A version is taken out of ``versions`` by rename before its files go: none is ever there in part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from datetime import timedelta
from typing import Final

from services.reranker.domain import Audience
from services.reranker.models.manifest import Manifest
from services.reranker.models.store import ModelStore, Pointer

LOADING: Final = timedelta(hours=1)
"""How long a version that nothing needs stays: longer than any process takes to load what it has found."""

_log = logging.getLogger("ragmesh.reranker.models")


def needed(manifests: Mapping[str, Manifest], pointers: Mapping[Audience, Pointer], keep: int) -> Set[str]:
    """Versions that are not to be removed.

    These are what is served, to all agents of a tenant and to one; of each, the ``keep`` versions served
    before, which can be rolled back to; of all agents' and each agent's own, the ``keep`` newest of the
    others; and whatever an adapter among all these changes.

    Args:
        manifests: all versions by name.
        pointers: what is served to whom.
        keep: [1, inf).
    """
    wanted: set[str] = set()
    for pointer in pointers.values():
        wanted |= {one for one in (pointer.serving, *pointer.history[:keep]) if one is not None}
    candidates: dict[Audience, list[Manifest]] = {}
    for manifest in manifests.values():
        if manifest.version not in wanted:
            candidates.setdefault(manifest.lineage.whose, []).append(manifest)
    for mine in candidates.values():
        mine.sort(key=lambda one: (one.created_at, one.version), reverse=True)
        wanted |= {one.version for one in mine[:keep]}
    return wanted | {
        manifests[one].lineage.base for one in wanted if one in manifests and manifests[one].lineage.base
    }


def prune(
    store: ModelStore, *, keep: int, in_memory: Iterable[str] = (), grace: timedelta = LOADING
) -> list[str]:
    """Marks what is not needed, removes what was marked for ``grace``, and tells what was removed.

    Nothing is removed while a pointer cannot be read, nor versions whose manifest cannot.

    Args:
        store: the versions.
        keep: see :func:`needed`.
        in_memory: versions that a caller serves, whatever the pointers say.
        grace: how long a version stays after it was found not to be needed.

    Raises:
        OSError: the disk.
    """
    manifests = store.manifests({})
    pointers, problems = store.pointers()
    if problems:
        _log.error("no version is removed: what is served is not known: %s", problems[0])
        return []
    kept = needed(manifests, pointers, keep) | set(in_memory)
    removed = []
    for version in sorted(manifests):
        if version in kept:
            store.unmark(version)
        elif store.mark(version) >= grace and store.remove(version):
            removed.append(version)
    return removed
