"""Share searches: equal queries of a tenant at one moment are one search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
        self._under_way: dict[tuple[str, str], asyncio.Task[list[Passage]]] = {}
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
                # Shielded: whoever goes away leaves the search to the others; it ends at its own limit.
                return list(await asyncio.shield(known))
            except MeshError:
                # It may have had less time than there is now. The first caller to see it searches anew.
                if self._under_way.get((tenant, query)) is known:
                    del self._under_way[tenant, query]
        search = asyncio.create_task(self._search(tenant, query, now + self._keep_s))
        search.add_done_callback(_retrieve_failure)
        self._under_way[tenant, query] = search
        return list(await asyncio.shield(search))

    async def _search(self, tenant: str, query: str, until: float) -> list[Passage]:
        try:
            found = await self._source.search(query)
        finally:
            if self._under_way.get((tenant, query)) is asyncio.current_task():
                del self._under_way[tenant, query]
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
