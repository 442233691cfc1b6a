"""Searches that are shared: equal queries of one moment are one search."""

from __future__ import annotations

import asyncio
from typing import Final

from cachetools import TTLCache

from meshkit.errors import MeshError
from services.retriever.domain import Passage
from services.retriever.web import WebSource, WebSourceInfo

KEPT: Final = 256
"""Searches whose passages are kept, the oldest given up first."""


class SharedSearches:
    """A web source that searches once for what is asked several times within a moment.

    The sources of one ensemble ask the web the same question, each to rank the answer its own way. What was
    found is theirs alike, also while the search is still under way; what failed is searched again. Made in a
    running event loop.

    Args:
        source: what searches.
        keep_s: how long what was found is given again. Seconds, (0, inf).
    """

    def __init__(self, source: WebSource, *, keep_s: float) -> None:
        self._source = source
        self._searches: TTLCache[str, asyncio.Task[list[Passage]]] = TTLCache(KEPT, keep_s)

    @property
    def info(self) -> WebSourceInfo:
        """What it is."""
        return self._source.info

    async def search(self, query: str) -> list[Passage]:
        """What is found, best first; raises as the source does."""
        while (known := self._searches.get(query)) is not None:
            try:
                # Shielded: whoever goes away leaves the search to the others; it ends at its own limit.
                return list(await asyncio.shield(known))
            except MeshError:
                # It may have had less time than there is now. The first to hear of it searches anew.
                if self._searches.get(query) is known:
                    del self._searches[query]
        search = asyncio.create_task(self._source.search(query))
        search.add_done_callback(_heard)
        self._searches[query] = search
        try:
            return list(await asyncio.shield(search))
        except MeshError:
            if self._searches.get(query) is search:
                del self._searches[query]
            raise


def _heard(search: asyncio.Task[list[Passage]]) -> None:
    """Takes notice of a failure, which is told to who waits, if anyone still does."""
    if not search.cancelled():
        search.exception()
