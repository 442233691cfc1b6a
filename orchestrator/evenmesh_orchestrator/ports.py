"""The services that the flow needs. Every method raises ``evenmesh.wire.errors.MeshError`` on failure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1.generator_service_pb2 import Answer, GenerateRequest
from evenmesh.wire.errors import MeshError
from evenmesh_core.exposure_balance import ExposureBalance
from evenmesh_orchestrator.domain import Ask, FirstStage, Observation, Pool, Relevance, Sampling


class Retriever(Protocol):
    """Finds candidates."""

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """Return the pool of an ask with rankings of ``k`` positions: one, or as many as ``sampling`` wants.

        With sampling the whole pool comes back, otherwise its first ``k`` passages. Ids carry the ask's
        prefix.
        """


class Reranker(Protocol):
    """Scores candidates again."""

    async def rerank(
        self, ask: Ask, passages: Sequence[Passage], *, timeout_s: float, first: FirstStage | None = None
    ) -> Relevance:
        """Return scores of the passages for an ask, in their order, fused with those of ``first``."""


class Generator(Protocol):
    """Writes answers."""

    def stream(self, prompt: GenerateRequest, *, timeout_s: float) -> AsyncGenerator[str | Answer, None]:
        """Yield text deltas, then the answer. Closing the iterator early stops the model."""

    async def batch(
        self, prompts: Sequence[GenerateRequest], *, timeout_s: float
    ) -> Sequence[Answer | MeshError]:
        """Return one answer or one error per prompt, in order."""

    async def knowledge(self, ask: Ask, *, max_passages: int, timeout_s: float) -> Pool:
        """Return what the model itself knows about a question: passages in one ranking, with ids ``PK/…``."""


class Models(Protocol):
    """Knows which models there are."""

    async def check_model(self, name: str, *, timeout_s: float) -> None:
        """Check that there is a model of this name; where that cannot be learned, its call will tell.

        Raises:
            NotFound: there is none.
        """


class Balances(Protocol):
    """Knows what providers are owed."""

    async def balance(self, collection: str, half_life_days: float, *, timeout_s: float) -> ExposureBalance:
        """Return what the providers of a collection deserved and were given, faded by age."""


@dataclass(frozen=True, slots=True)
class VoteState:
    """State of a vote after an answer.

    Attributes:
        winner: the leading member; None while nobody leads.
        decided: whether the result is final.
        scores: of each member; not a number where it has none.
        similarities: of the answer that was just counted to that of each member; not a number where that has
            none. Empty where the answer is missing.
    """

    winner: int | None
    decided: bool
    scores: tuple[float, ...] = ()
    similarities: tuple[float, ...] = ()


class VoteSession(Protocol):
    """One vote of an ensemble."""

    async def add(self, member: int, answer: str | None) -> VoteState:
        """Count the answer of a member, None if there will be none. Call it once per member."""

    def close(self) -> None:
        """End the vote."""


class VoteSessions(Protocol):
    """Opens votes."""

    def open_vote(self, vote: evaluator_pb.VoteRequest, *, timeout_s: float) -> VoteSession:
        """Return a vote with one member per weight; a failure shows when it is first used."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that an observation is stored.

    ``waits`` is the reason why it cannot be sent now, None if it can. ``report`` gives the run's report once
    the evaluator has the observation, or raises ``MeshError``; None if the ask did not want one.
    """

    waits: str | None
    report: Awaitable[evaluator_pb.RunReport] | None


class Observer(Protocol):
    """Delivers one observation for every ask to the evaluator."""

    async def submit(self, observation: Observation) -> Receipt:
        """Store an observation for delivery; it is durable when this returns.

        Raises:
            MeshError: it could not be stored and is lost.
        """
