"""What the engine needs of whatever scores passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from services.reranker.domain import Agent, Best, Passage, Scores


class Reranker(Protocol):
    """Scores passages for a query. Used from one event loop, by many callers at once."""

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """One score per passage, in order; it depends on the query, the passage and the agent alone.

        An agent the model was not trained for is scored for as an unknown one. Where only the ``best`` are
        wanted, passages may be left without a score that cannot be among them.

        Raises:
            FailedPrecondition: it is not configured.
            Unavailable: what it needs is away.
            MeshError: the query does not fit the model, or there is no time left.
        """
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """A pair of query and passage as tokens, those of the agent among them.

    Attributes:
        ids: token ids.
        types: segment of each token; None where the model has no segments.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...] | None


class Adapter(Protocol):
    """Changes to a model's parameters for one agent."""

    @property
    def version(self) -> str:
        """Version of the changes."""
        ...

    @property
    def size(self) -> int:
        """What it takes in memory. Bytes."""
        ...


class LoadedModel(Protocol):
    """A model in memory. Its methods compute: call them in threads, :meth:`probabilities` one at a time."""

    @property
    def version(self) -> str:
        """Version of its parameters."""
        ...

    @property
    def created_at(self) -> datetime:
        """When its parameters were made."""
        ...

    @property
    def provenance(self) -> str:
        """Where they came from, one line."""
        ...

    @property
    def size(self) -> int:
        """What it takes in memory. Bytes."""
        ...

    @property
    def agent_tokens(self) -> tuple[str, ...]:
        """Tokens of tasks and models that it has, ascending; none if it ranks alike for all agents."""
        ...

    def knows(self, agent: Agent) -> bool:
        """Whether it has tokens of the agent's task and model."""
        ...

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        """Query and texts as the model reads them for an agent."""
        ...

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        """The score of each row, [0, 1], with the changes of its agent; rows of many agents in one batch."""
        ...

    def add_agents(self, agents: Sequence[Agent]) -> None:
        """Gives agents tokens of their own, which score as those of unknown agents until they are trained.

        A model without tokens of agents stays without.
        """
        ...


class ModelLoader(Protocol):
    """Brings models into memory. Its methods take long: call them in a thread.

    Each raises meshkit.models.ModelError when a model cannot be had.
    """

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> LoadedModel:
        """A whole model."""
        ...

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> Adapter:
        """Changes to a model that is loaded."""
        ...

    def merge_tokens(self, source: LoadedModel, folder: Path, target: Path) -> tuple[str, ...]:
        """Writes the model of a folder into another one, with the tokens of agents that it lacks.

        Returns all tokens of agents it has then; writes nothing and returns nothing if it lacks none.
        """
        ...


@dataclass(frozen=True, slots=True)
class Assigned:
    """What scores for an agent: a model and perhaps the agent's changes to it."""

    model: LoadedModel
    adapter: Adapter | None = None

    @property
    def version(self) -> str:
        """The version that replies name."""
        return self.model.version if self.adapter is None else self.adapter.version


class ModelsOfAgents(Protocol):
    """Knows which model serves whom."""

    async def model_for(self, agent: Agent) -> Assigned:
        """What scores for an agent now.

        Raises:
            FailedPrecondition: there is no learned model.
        """
        ...
