"""Share searches: equal queries of a tenant at one moment are one search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from evenmesh.wire.errors import MeshError
from evenmesh_kit.compute.tenant_cache import TenantCache
from evenmesh_kit.security import caller as callers
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.web import WebSource, WebSourceInfo

_PASSAGE_BYTES: Final = 512
_TEXT_BYTES: Final = 128
KEPT_BYTES: Final = 64 * 2**20
"""Passages that are kept for all tenants; one has at most a quarter."""


@dataclass(eq=False)
class _Search:
    """A search that is under way."""

    task: asyncio.Task[list[Passage]]
    waiting: int = 0
    """Callers that wait for it."""


class SharedSearches:
    """A web source that searches once for what is asked several times within a moment.

    The sources of one ensemble ask the web the same question, each to rank the answer its own way. What was
    found is theirs alike, also while the search is still under way; what failed is searched again. Tenants
    share nothing: the time of an answer must not tell what another one asked. Made in a running event loop.

    Args:
        source: what searches.
        keep_s: how long what was found is given again. Seconds, (0, inf).
        keep_bytes: most bytes of passages that are kept. [0, inf).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: WebSource,
        *,
        keep_s: float,
        keep_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._clock = clock
        self._keep_s = keep_s
        self._under_way: dict[tuple[str, str], _Search] = {}
        # With the time at which they are too old.
        self._found: TenantCache[tuple[float, list[Passage]]] = TenantCache(keep_bytes)

    @property
    def info(self) -> WebSourceInfo:
        """What it is."""
        return self._source.info

    async def search(self, query: str) -> list[Passage]:
        """Return what is found, best first; raises as the source does."""
        tenant = callers.current().tenant
        now = self._clock()
        kept = self._found.get(tenant, query)
        if kept is not None and now < kept[0]:
            return list(kept[1])
        while (known := self._under_way.get((tenant, query))) is not None:
            try:
                return await self._awaited((tenant, query), known)
            except MeshError:
                # It may have had less time than there is now. The first caller to see it searches anew.
                self._forget((tenant, query), known)
        search = _Search(asyncio.create_task(self._search(tenant, query, now + self._keep_s)))
        search.task.add_done_callback(_retrieve_failure)
        self._under_way[tenant, query] = search
        return await self._awaited((tenant, query), search)

    async def _awaited(self, key: tuple[str, str], search: _Search) -> list[Passage]:
        """Return what a search finds; end it if nobody waits for it any more."""
        search.waiting += 1
        try:
            # Shielded: whoever goes away leaves the search to the others.
            return list(await asyncio.shield(search.task))
        finally:
            search.waiting -= 1
            if not search.waiting:
                # Work that was admitted ends with its callers, or they could have any number of searches run.
                self._forget(key, search)
                search.task.cancel()

    def _forget(self, key: tuple[str, str], search: _Search) -> None:
        if self._under_way.get(key) is search:
            del self._under_way[key]

    async def _search(self, tenant: str, query: str, until: float) -> list[Passage]:
        found = await self._source.search(query)
        self._found.put(tenant, query, (until, found), len(query.encode()) + _size(found))
        return found


def _size(passages: list[Passage]) -> int:
    """Return what passages take in memory, about. Bytes."""
    attributes = sum(
        _TEXT_BYTES + len(key) + len(value) for one in passages for key, value in one.attributes.items()
    )
    return attributes + sum(_PASSAGE_BYTES + one.num_bytes for one in passages)


def _retrieve_failure(search: asyncio.Task[list[Passage]]) -> None:
    """Retrieve a failure, which those who wait get, so that it is not logged as lost."""
    if not search.cancelled():
        search.exception()
