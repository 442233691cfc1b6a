"""Interfaces that online training needs: passages and promotion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online.training_examples import PassageKey


class Passages(Protocol):
    """Knows passages, and finds them."""

    async def texts(self, keys: Iterable[PassageKey]) -> Mapping[PassageKey, Passage]:
        """Return the passages that exist; deleted ones and those of no collection are left out.

        Raises:
            Unavailable: they cannot be read now.
        """
        ...

    async def found(self, collection: str, query: str) -> Candidates | None:
        """Return the first stage's best 100 passages for a query, best first.

        None if the collection does not exist, or the query cannot be asked.

        Raises:
            Unavailable: they cannot be found now.
        """
        ...


class Promoter(Protocol):
    """Promotes versions."""

    async def promote(self, version: str) -> None:
        """Serve a version to its agent; the next request is scored by it.

        Raises:
            Unavailable: the serving process is away.
            MeshError: it rejects the version.
        """
        ...
