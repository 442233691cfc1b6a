"""What the reranker speaks of: passages, agents, scores, models."""

from __future__ import annotations

from dataclasses import dataclass
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
    """A learned model of this service: its version, when it was made, and by what."""

    version: str
    serving: bool
    created_at: datetime
    provenance: str
