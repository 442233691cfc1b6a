"""What the reranker speaks of: passages, agents, scores, models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as a reranker reads it."""

    id: str
    title: str
    text: str


DEFAULT_TENANT: Final = "default"
"""Whose agents those are that no tenant is named for."""


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that will use the ranking; empty ids mean an unknown agent.

    ``tenant`` is whose it is: an agent of the same ids of another tenant is another agent, whose feedback and
    models it has nothing to do with.
    """

    task_id: str = ""
    model_id: str = ""
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Everyone:
    """All agents of a tenant, which are served alike where they have nothing of their own."""

    tenant: str = DEFAULT_TENANT


Audience = Agent | Everyone
"""Whom a model serves."""


@dataclass(frozen=True, slots=True)
class Best:
    """How many of the best passages are wanted, and how sure it must be that they are the best.

    Attributes:
        count: [1, number of passages].
        tolerance: by how much the score of a passage that is left out may be higher than that of one of them,
            [0, 1].
    """

    count: int
    tolerance: float


@dataclass(frozen=True, slots=True)
class Scores:
    """How useful passages are, and the version that says so.

    Attributes:
        values: probability that each passage is useful, [0, 1], in request order; NaN where it has no score.
        model_version: what scored.
        unscored_at_most: what the score of a passage without one is at most; None if all have one.
    """

    values: tuple[float, ...]
    model_version: str
    unscored_at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores in request order and the best passages' indices, best first.

    Attributes:
        scores: as those of :class:`Scores`.
        order: the best passages; all of them have a score.
        model_version: what scored.
        reranker: its name.
        unscored_at_most: as that of :class:`Scores`.
    """

    scores: tuple[float, ...]
    order: tuple[int, ...]
    model_version: str
    reranker: str
    unscored_at_most: float | None = None


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
