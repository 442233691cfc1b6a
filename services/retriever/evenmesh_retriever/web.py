"""Rank what web-search sources find, as it came or by a retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_retriever import cost
from evenmesh_retriever.domain import Passage, Query, Retrieval, Scored
from evenmesh_retriever.engine import DEFAULT_DEPTH, DEFAULT_K, RetrieverEngine
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.ranking import ranked

AS_FOUND: Final = "web"
"""Retriever of what is ranked as it came."""


@dataclass(frozen=True, slots=True)
class WebSourceInfo:
    """What a web source is: its name, and one line for people."""

    name: str
    description: str


class WebSource(Protocol):
    """A search of the web."""

    @property
    def info(self) -> WebSourceInfo:
        """What it is."""

    async def search(self, query: str) -> list[Passage]:
        """Return what it finds, best first; ids are unique, and equal for equal parts of equal pages.

        Raises:
            MeshError: the search failed; a failed page is not an error.
        """


class WebRetrieval:
    """Answers queries from web sources.

    Args:
        sources: by name.
        engine: ranks the results if a request names a retriever.
        admission: bounds the work of searches and of ranking what they find.
    """

    def __init__(
        self, sources: Mapping[str, WebSource], engine: RetrieverEngine, admission: QueryAdmission
    ) -> None:
        self._sources = sources
        self._engine = engine
        self._admission = admission

    def list(self) -> list[WebSourceInfo]:
        """Return the sources by ascending name."""
        return [self._sources[name].info for name in sorted(self._sources)]

    async def retrieve(self, source: str, query: Query) -> Retrieval:
        """Return answers one query from the source of that name.

        Without a retriever the score of a passage is the reciprocal of its rank.

        Raises:
            NotFound: no such source or retriever.
            InvalidField: ``k`` above ``depth``.
            MeshError: the search failed, or too much work is in flight.
        """
        found = self._sources.get(source)
        if found is None:
            there = ", ".join(sorted(self._sources)) or "none; EVENMESH_RETRIEVER_WEB_SOURCES adds some"
            raise NotFound("web", f"there is no web source {source!r}; there are {there}")
        depth = query.depth or DEFAULT_DEPTH
        k = query.k or min(DEFAULT_K, depth)
        if k > depth:
            raise InvalidField("k", f"must be at most depth, which is {depth}, got {k}")
        async with self._admission.admit(min(cost.WEB_SEARCH, self._admission.most)):
            passages = await found.search(query.text)
        if query.filter is not None:
            passages = [passage for passage in passages if query.filter.allows(passage.attributes)]
        if query.retriever and passages:
            # What could be found is known only now, so that fewer than asked for are no error, nor are more
            # than a query may have ranked.
            size = max(1, self._engine.num_fitting(replace(query, candidates=passages, filter=None)))
            asked = replace(
                query, candidates=passages[:size], depth=min(depth, size), k=min(k, depth, size), filter=None
            )
            return await self._engine.retrieve(asked)
        return _as_found(query, passages[:depth], k)


def _as_found(query: Query, passages: Sequence[Passage], k: int) -> Retrieval:
    scores = 1 / np.arange(1, len(passages) + 1, dtype=np.float64)
    pool = Scored(np.arange(len(passages)), scores)
    found = ranked(query, pool, k, lambda: [one.attributes for one in passages])
    return Retrieval(
        passages=passages[: found.shown],
        scores=scores[: found.shown],
        rankings=found.rankings,
        log_probabilities=found.log_probabilities,
        inclusion=found.inclusion,
        version="",
        retriever=AS_FOUND,
        policy=found.policy,
    )
