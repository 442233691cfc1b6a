"""Interfaces between the engine, the rerankers and the models they compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from evenmesh_reranker.domain import Agent, Best, Fusion, Passage, Scores
from evenmesh_reranker.models.fusions import Fusions


class Reranker(Protocol):
    """Scores passages for a query. One event loop uses it for many requests at once."""

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """Return one score per passage, in order; it depends on query, passage and agent alone.

        An agent that the model was not trained for gets the scores of an unknown agent. With ``best``, a
        passage that cannot be among the best may stay without a score.

        Raises:
            FailedPrecondition: the reranker is not configured.
            Unavailable: a service it needs is away.
            MeshError: the query does not fit the model, or no time is left.
        """


@dataclass(frozen=True, slots=True)
class Row:
    """A pair of query and passage as tokens, with the tokens of its agent.

    Attributes:
        ids: token ids.
        types: segment of each token; None if the model has no segments.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...] | None


class Adapter(Protocol):
    """Changes of a model for one agent."""

    @property
    def version(self) -> str: ...

    @property
    def size(self) -> int:
        """Size in memory. Bytes."""

    @property
    def fusion(self) -> Fusion | None:
        """How the agent's scores are fused with those of a first stage; None: as the model says."""


class LoadedModel(Protocol):
    """A model in memory. Its methods compute: call them in threads, :meth:`probabilities` in ``parallel``."""

    @property
    def version(self) -> str: ...

    @property
    def created_at(self) -> datetime:
        """When the parameters were made."""

    @property
    def provenance(self) -> str:
        """Where the parameters came from, one line."""

    @property
    def size(self) -> int:
        """Size in memory. Bytes."""

    @property
    def device(self) -> str:
        """Where it computes: ``cpu`` or ``cuda:0``."""

    @property
    def parallel(self) -> int:
        """Threads that may call :meth:`probabilities` at a time."""

    def batches(self, lengths: Sequence[int]) -> list[list[int]] | None:
        """Return how rows of such lengths are best split: places of the rows of each batch, for its threads.

        None: however they are split, as long as rows of alike lengths are together. Else no score depends on
        its batch.
        """

    @property
    def agent_tokens(self) -> tuple[str, ...]:
        """Tokens of tasks and models, ascending; empty if the model ranks the same for all agents."""

    @property
    def fusions(self) -> Fusions:
        """How its scores are fused with those of a first stage by default; weight 0: not at all."""

    @property
    def reads_asking(self) -> bool:
        """Whether a query is also read without what it says beside its question."""

    def knows(self, agent: Agent) -> bool:
        """Return whether the model has tokens of the agent's task and model."""

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        """Return query and texts as the model reads them for an agent."""

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        """Return the score of each row, [0, 1], with its adapter; a batch may mix agents."""

    def add_agents(self, agents: Sequence[Agent]) -> None:
        """Add tokens of agents, which score as those of unknown agents until they are trained.

        A model without tokens of agents stays without.
        """


M = TypeVar("M", bound=LoadedModel, covariant=True)
A = TypeVar("A", bound=Adapter, covariant=True)


class ModelLoader(Protocol[M, A]):
    """Loads models into memory. Its methods take long: call them in a thread.

    Each raises evenmesh_kit.compute.model_files.ModelError when a model cannot be loaded.
    """

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> M:
        """Load a whole model."""

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> A:
        """Load changes of a loaded model."""

    def merge_tokens(self, source: LoadedModel, folder: Path, target: Path) -> tuple[str, ...]:
        """Write the model in ``folder`` to ``target``, with the agent tokens of ``source`` that it lacks.

        Return all its agent tokens; write and return nothing if it lacks none.
        """


@dataclass(frozen=True, slots=True)
class Assigned:
    """The model that scores for an agent, and the agent's adapter if it has one."""

    model: LoadedModel
    adapter: Adapter | None = None

    @property
    def version(self) -> str:
        """Version that replies name."""
        return self.model.version if self.adapter is None else self.adapter.version

    def fusion(self, agent: Agent) -> Fusion:
        """Return how the agent's scores are fused with those of a first stage."""
        own = None if self.adapter is None else self.adapter.fusion
        return own or self.model.fusions.of(agent)


class ModelsOfAgents(Protocol):
    """Finds the model of each agent."""

    async def model_for(self, agent: Agent) -> Assigned:
        """Return what scores for an agent now.

        Raises:
            FailedPrecondition: there is no learned model.
        """
