"""What online training needs of others: passages' texts, promoting, and the right to train an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from services.reranker.domain import Agent, Passage
from services.reranker.online.lessons import PassageKey


class Passages(Protocol):
    """Has the texts of passages."""

    async def texts(self, keys: Iterable[PassageKey]) -> Mapping[PassageKey, Passage]:
        """Those of them that are there; of what was deleted, or came from no collection, nothing.

        Raises:
            Unavailable: they cannot be read now.
        """
        ...


class Promoter(Protocol):
    """Makes versions serve."""

    async def promote(self, version: str) -> None:
        """Serves a version to its agent; returns when the next request is scored by it.

        Raises:
            Unavailable: whoever serves is away.
            MeshError: it refuses.
        """
        ...


class Leases(Protocol):
    """Gives each agent to one trainer at a time. Every method raises Unavailable when it cannot."""

    async def take(self, agent: Agent) -> bool:
        """Takes an agent, or keeps it for longer; False if another trainer has it."""
        ...

    async def give_back(self, agent: Agent) -> None:
        """Lets others have it."""
        ...
