"""What the pipeline needs of the other services. Every method raises ``meshkit.errors.MeshError``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshkit.errors import MeshError
from orchestrator.domain import Agent, Answer, Ask, Observation, Passage, Pool, Prompt, Relevance, Sampling
from orchestrator.ensembles.definitions import Voting


class Retriever(Protocol):
    """Finds candidates."""

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """The pool of an ask with rankings of ``k`` positions: one, or as many as ``sampling`` wants.

        All of the pool comes back when sampled, otherwise its first ``k``. Ids begin with the ask's prefix.
        """


class Reranker(Protocol):
    """Scores candidates again."""

    async def rerank(
        self, question: str, passages: Sequence[Passage], *, agent: Agent, reranker: str, timeout_s: float
    ) -> Relevance:
        """Scores of the passages, in their order."""


class Generator(Protocol):
    """Writes answers."""

    def stream(self, prompt: Prompt, *, timeout_s: float) -> AsyncGenerator[str | Answer, None]:
        """Text deltas, then the answer. Leaving the iterator early stops the model."""

    async def batch(self, prompts: Sequence[Prompt], *, timeout_s: float) -> Sequence[Answer | MeshError]:
        """One answer or one error per prompt, in order."""

    async def knowledge(self, ask: Ask, *, most: int, timeout_s: float) -> Pool:
        """What the model itself knows about an ask's question, as at most ``most`` passages in one ranking.

        Ids begin with ``PK/``.
        """


@dataclass(frozen=True, slots=True)
class Standing:
    """How a vote stands: the member that leads, None while none does, and whether that can still change."""

    winner: int | None
    decided: bool


class Ballot(Protocol):
    """One vote."""

    async def cast(self, member: int, answer: str | None) -> Standing:
        """Counts the answer of a member, once for each; None where there will be none."""

    def close(self) -> None:
        """Ends it."""


class Votes(Protocol):
    """Lets answers vote."""

    def open(self, question: str, voting: Voting, *, timeout_s: float) -> Ballot:
        """A vote of as many members as have weights; whether anybody counts shows when it is used."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """An observation is kept.

    ``waits`` is the reason why it cannot be sent on yet, None where it can. ``report`` gives the run's report
    once the evaluator has the observation, or raises ``MeshError``; None where the ask did not want one.
    """

    waits: str | None
    report: Awaitable[object] | None


class Observer(Protocol):
    """Sees to it that the evaluator hears of every ask."""

    async def post(self, observation: Observation) -> Receipt:
        """Takes an observation for good: it is durable here by the time this returns.

        Raises:
            Unavailable: it could not be kept and is lost.
        """
