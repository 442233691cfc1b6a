"""Interfaces of what keeps feedback, agents, served rankings and reports of trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evenmesh_reranker.domain import Agent, Scope
from evenmesh_reranker.feedback.domain import AgentSummary, Feedback, Outcome, ServedRanking, StoredFeedback
from evenmesh_reranker.feedback.training import Training, TrainingReport


class FeedbackStore(Protocol):
    """Keeps feedback; several processes may share one. Every method may raise Unavailable."""

    async def record(self, batch: Sequence[Feedback]) -> Sequence[Outcome]:
        """Store new items within the limits, all or nothing; durable on return."""

    async def find(self, batch: Sequence[Feedback]) -> Sequence[Outcome | None]:
        """Return which items of a batch are stored: DUPLICATE, CONFLICT, or None; change nothing."""

    async def page(
        self,
        scope: Scope,
        *,
        after: int = 0,
        limit: int = 1000,
        since_us: int = 0,
        include_flagged: bool = False,
    ) -> Sequence[StoredFeedback]:
        """Return the first items of a scope after a sequence number, in order.

        At most ``limit``, and no more after 4 MiB of rankings; none only where there are none.
        """

    async def latest(self) -> int:
        """Return the sequence number of the last item; 0 if there is none. Cheap."""

    async def delete_before(self, before_us: int, *, limit: int) -> int:
        """Delete at most ``limit`` of the oldest items stored before a time; return how many."""


class AgentRegistry(Protocol):
    """Keeps agents. Every method may raise Unavailable."""

    async def register(self, agent: Agent, description: str, *, most: int) -> AgentSummary | None:
        """Register an agent or change its description; durable on return.

        Return None if ``most`` agents of its tenant are registered already.
        """

    async def registered(self) -> Sequence[Agent]:
        """Return the registered agents of all tenants, in the order they first appeared."""

    async def agents(self, tenant: str, *, skip: int = 0, limit: int = 1000) -> Sequence[AgentSummary]:
        """Return ``limit`` agents of a tenant after the first ``skip``, in the order they first appeared."""


class ServedStore(Protocol):
    """Keeps served rankings. Every method may raise Unavailable."""

    async def remember(self, served: Sequence[ServedRanking]) -> None:
        """Keep rankings; durable on return. A tenant's oldest go where it has more than its share."""

    async def recall(self, key: bytes) -> Sequence[bytes]:
        """Return the passages of the newest few rankings of a key, newest first."""

    async def forget_before(self, before_us: int, *, limit: int) -> int:
        """Delete at most ``limit`` of the oldest rankings served before a time; return how many."""


class TrainingLog(Protocol):
    """Keeps reports of trainers. Every method may raise Unavailable."""

    async def report(self, report: TrainingReport) -> None:
        """Replace the previous report."""

    async def training(self, agent: Agent) -> Training:
        """Return an agent's training and how much of its feedback waits."""

    async def trainings(self, tenant: str) -> Sequence[Training]:
        """Return the training for all agents of a tenant, and that of each of its agents."""

    async def trainings_of_agents(self) -> Sequence[Training]:
        """Return the training of every agent of every tenant, for trainers, which serve all tenants."""
