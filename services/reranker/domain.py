"""What the reranker speaks: a query, passages, the agent, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Passage(Protocol):
    """A passage as it came with the request: read and handed on, never made here."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Agent:
    """On whose behalf is ranked; empty ids, and ids that no model knows, are an unknown agent."""

    task_id: str = ""
    model_id: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores in [0, 1], one per passage in the order given, and the version of the model that gave them."""

    scores: Sequence[float]
    model_version: str


@dataclass(frozen=True, slots=True)
class Reranked:
    """Scores, and the indices of the best passages: best first, ties by ascending passage id."""

    scored: Scored
    order: Sequence[int]
    reranker: str


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that this process serves: its version, and where it came from."""

    version: str
    provenance: str
