"""What feedback needs of whatever keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.reranker.domain import Agent, Audience
from services.reranker.feedback.domain import AgentSummary, Feedback, Outcome, Served, StoredFeedback
from services.reranker.feedback.training import Training, TrainingReport


class FeedbackStore(Protocol):
    """Keeps feedback; several processes may share one. Every method raises Unavailable when it cannot."""

    async def record(self, batch: Sequence[Feedback]) -> Sequence[Outcome]:
        """Stores what is new and within the limits; durable when it returns, all of it or none of it."""
        ...

    async def find(self, batch: Sequence[Feedback]) -> Sequence[Outcome | None]:
        """What is stored of a batch already: DUPLICATE, CONFLICT, or None; changes nothing."""
        ...

    async def page(
        self,
        whose: Audience,
        *,
        after: int = 0,
        limit: int = 1000,
        since_us: int = 0,
        include_flagged: bool = False,
    ) -> Sequence[StoredFeedback]:
        """The first ``limit`` items after a sequence number, in order, of an agent or of all of a tenant."""
        ...

    async def latest(self) -> int:
        """The sequence number of the last item; 0 if there is none. Costs next to nothing."""
        ...

    async def delete_before(self, before_us: int, *, limit: int) -> int:
        """Deletes at most ``limit`` of the oldest items, those stored before a time; says how many."""
        ...


class AgentRegistry(Protocol):
    """Keeps agents. Every method raises Unavailable when it cannot."""

    async def register(self, agent: Agent, description: str, *, most: int) -> AgentSummary | None:
        """Registers an agent or changes its description; durable when it returns.

        Returns None if ``most`` of its tenant's are registered already.
        """
        ...

    async def registered(self) -> Sequence[Agent]:
        """All registered agents of all tenants, in the order they were first heard of."""
        ...

    async def agents(self, tenant: str, *, after: int = 0, limit: int = 1000) -> Sequence[AgentSummary]:
        """The first ``limit`` agents of a tenant after a sequence number, in the order first heard of."""
        ...


class ServedStore(Protocol):
    """Keeps what was served. Every method raises Unavailable when it cannot."""

    async def remember(self, served: Sequence[Served]) -> None:
        """Keeps what was served; durable when it returns."""
        ...

    async def recall(self, key: bytes) -> Sequence[bytes]:
        """The passages of the newest rankings of a key, newest first; few."""
        ...

    async def forget_before(self, before_us: int, *, limit: int) -> int:
        """Deletes at most ``limit`` of the oldest rankings, those served before a time; says how many."""
        ...


class TrainingLog(Protocol):
    """What trainers say, and what waits for them. Every method raises Unavailable when it cannot."""

    async def report(self, report: TrainingReport) -> None:
        """Keeps what a trainer says of its training in place of what it said before."""
        ...

    async def training(self, agent: Agent) -> Training:
        """What was told of an agent's training and how much of its feedback waits."""
        ...

    async def trainings(self, tenant: str) -> Sequence[Training]:
        """The training for all agents of a tenant, and that of each of its agents."""
        ...

    async def trainings_of_agents(self) -> Sequence[Training]:
        """The training of every agent of every tenant: what trainers, which work for all, look at."""
        ...
