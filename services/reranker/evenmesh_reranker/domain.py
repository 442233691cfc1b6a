"""Values of the reranker: passages, agents, scopes, scores, rankings and learned models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from evenmesh_kit.security.caller import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as a reranker reads it."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that will use a ranking; empty ids stand for an unknown task or model.

    Agents with equal ids of two ``tenant`` are two agents: they share neither feedback nor models.
    """

    task_id: str = ""
    model_id: str = ""
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class AllAgents:
    """All agents of a tenant. They share one model, except agents that have their own version."""

    tenant: str = DEFAULT_TENANT


Scope = Agent | AllAgents
"""Agents that a model serves: one, or all of a tenant."""


@dataclass(frozen=True, slots=True)
class Best:
    """A request for the best passages only.

    Attributes:
        count: number of passages wanted, [1, number of passages].
        tolerance: how much higher a passage that is left out may score than one of the best, [0, 1].
    """

    count: int
    tolerance: float


@dataclass(frozen=True, slots=True)
class FirstStage:
    """What a first stage gave the passages of a request.

    Attributes:
        scores: one for each passage, in request order.
        mean: of the scores of the pool that the passages are from.
        deviation: their standard deviation, [0, inf); at 0 the scores say nothing.
    """

    scores: tuple[float, ...]
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Fusion:
    """How a reranker's probabilities are fused with a first stage's scores.

    See :func:`evenmesh_core.fusion.log_odds_fusion`.

    Attributes:
        weight: of the standardized scores beside the log-odds, [0, 10].
        neighbors: of the support of similar passages beside both, [0, 10].
        slope: of the calibration of the sum, (0, 10].
        intercept: of the calibration, [-100, 100].
    """

    weight: float
    neighbors: float = 0.0
    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of passages, and the version that computed them.

    Attributes:
        values: probability that each passage is useful, [0, 1], in request order; NaN where not scored.
        model_version: version of the model.
        unscored_at_most: upper bound of the scores that are missing; None if none is.
        fusion: how they are fused with a first stage's by default; None: they cannot be.
    """

    values: tuple[float, ...]
    model_version: str
    unscored_at_most: float | None = None
    fusion: Fusion | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores in request order, and the indices of the best passages, best first.

    Attributes:
        scores: as :attr:`Scores.values`.
        order: indices of the best passages; all of these have a score.
        model_version: version of the model.
        reranker: name of the reranker.
        unscored_at_most: as :attr:`Scores.unscored_at_most`.
        fusion: weight of the first stage in the scores; 0 if they are the reranker's alone.
    """

    scores: tuple[float, ...]
    order: tuple[int, ...]
    model_version: str
    reranker: str
    unscored_at_most: float | None = None
    fusion: float = 0.0


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """A learned model of this service.

    Attributes:
        version: its name.
        serving: whether it serves now.
        created_at: when its parameters were made.
        provenance: what made it, one line.
        parent_version: version it was trained from; empty if none.
        metrics: measured values by name, without undefined ones.
        agent: the one agent it serves; None if it serves all agents.
        base_version: of an adapter, the version it changes; empty for a full model.
        size_bytes: size on disk; 0 if unknown.
        agent_tokens: its tokens of tasks and models.
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
