"""What the reranker speaks of: passages, agents, scores, models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as a reranker reads it."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that will use the ranking; empty ids mean an unknown agent."""

    task_id: str = ""
    model_id: str = ""


@dataclass(frozen=True, slots=True)
class Scores:
    """Probability that each passage is useful, [0, 1], in request order, and the version that says so."""

    values: tuple[float, ...]
    model_version: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores in request order and the best passages' indices, best first."""

    scores: tuple[float, ...]
    order: tuple[int, ...]
    model_version: str
    reranker: str


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """A learned model of this service.

    Attributes:
        version: its name.
        serving: whether it is served now.
        created_at: when it was made.
        provenance: what made it, one line.
        parent_version: version it was trained from; empty if there is none.
        metrics: what was measured of it, by name; what is undefined is left out.
        agent: the agent whose own it is; None if it serves all agents.
        base_version: of an adapter, the version it changes; empty if it is a model of its own.
        size_bytes: its size on disk; 0 if that is not known.
        agent_tokens: tokens of tasks and models that it has.
    """

    version: str
    serving: bool
    created_at: datetime
    provenance: str
    parent_version: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    agent: Agent | None = None
    base_version: str = ""
    size_bytes: int = 0
    agent_tokens: tuple[str, ...] = ()
