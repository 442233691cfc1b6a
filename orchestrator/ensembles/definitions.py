"""The ensembles of the settings, and the weights their answers vote with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.expressions.parser import ExpressionError
from orchestrator.expressions.sources import Catalogue

MIN_MEMBERS: Final = 2
"""Fewest expressions of an ensemble: one has nobody to vote with."""
MAX_MEMBERS: Final = 20
"""Most expressions of an ensemble."""
ANY_TASK: Final = "*"
"""The task whose weights hold for all that have none of their own."""


class EnsembleDefinition(BaseModel):
    """One ensemble of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    members: tuple[str, ...] = Field(min_length=MIN_MEMBERS, max_length=MAX_MEMBERS)
    """Expressions, each once."""
    similarities: dict[str, float] = Field(default_factory=lambda: {"token_f1": 1.0}, min_length=1)
    """Measures of how alike two answers are, by the evaluator's names, each with its weight from 0."""
    pooling: Literal["mean", "max", "majority", "plurality"] = "mean"
    threshold: float = Field(default=0.8, ge=0, le=1)
    """Similarity above which answers agree, for majority and plurality, [0, 1]."""
    retriever_filter: float = Field(default=0.1, ge=0, le=1)
    """Weight up to which a member's answer cannot win, [0, 1]."""
    drop_filtered: bool = False
    """Whether such answers do not vote for others either."""
    weights: dict[str, Path] = Field(default_factory=dict)
    """Files of weights by task, ``*`` for all others: what ``ragmesh eval vote --tune … --json`` writes."""

    @model_validator(mode="after")
    def _members_differ(self) -> Self:
        for place, member in enumerate(self.members):
            if member in self.members[:place]:
                raise ValueError(f"has {member} twice")
        return self


class _WeightsFile(BaseModel):
    """What a file of weights must have; what else a vote study has is not looked at."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    retrievers: tuple[str, ...]
    retriever_weights: tuple[float, ...]
    similarities: tuple[str, ...]
    similarity_weights: tuple[float, ...]

    @model_validator(mode="after")
    def _columns_match(self) -> Self:
        for names, weights in (
            (self.retrievers, self.retriever_weights),
            (self.similarities, self.similarity_weights),
        ):
            if len(names) != len(weights):
                raise ValueError(f"has {len(names)} names and {len(weights)} weights")
        if any(not 0 <= weight <= 1 for weight in (*self.retriever_weights, *self.similarity_weights)):
            raise ValueError("has a weight outside [0, 1]")
        return self


@dataclass(frozen=True, slots=True)
class Voting:
    """How answers vote; weights of members are in their order, similarities by name."""

    similarities: Mapping[str, float]
    member_weights: tuple[float, ...]
    pooling: str = "mean"
    threshold: float = 0.8
    retriever_filter: float = 0.1
    drop_filtered: bool = False


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is in an ensemble, and how they vote by task."""

    members: tuple[str, ...]
    by_task: Mapping[str, Voting]

    def voting(self, task: str) -> Voting:
        """How answers of a task vote."""
        return self.by_task.get(task) or self.by_task[ANY_TASK]


class Ensembles:
    """The ensembles there are.

    Args:
        definitions: by name.
        sources: what their expressions can name.

    Raises:
        ValueError: an expression that cannot be run, or a file of weights that is none, or of other members.
            The message names the ensemble.
    """

    def __init__(
        self, definitions: Mapping[str, EnsembleDefinition] | None = None, sources: Catalogue | None = None
    ) -> None:
        known = sources or Catalogue()
        self._rosters = {
            name: _roster(name, definition, known) for name, definition in (definitions or {}).items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, ascending."""
        return tuple(sorted(self._rosters))

    def get(self, name: str) -> Roster | None:
        """An ensemble by name; None if there is none."""
        return self._rosters.get(name)


def equal(members: tuple[str, ...]) -> Roster:
    """An ensemble whose members are alike in the vote."""
    return Roster(members, {ANY_TASK: Voting({"token_f1": 1.0}, (1.0,) * len(members))})


def _roster(name: str, definition: EnsembleDefinition, sources: Catalogue) -> Roster:
    for member in definition.members:
        try:
            sources.read(member)
        except ExpressionError as error:
            raise ValueError(f"ensemble {name}: {member!r}: {error}") from None
    even = Voting(
        similarities=definition.similarities,
        member_weights=(1.0,) * len(definition.members),
        pooling=definition.pooling,
        threshold=definition.threshold,
        retriever_filter=definition.retriever_filter,
        drop_filtered=definition.drop_filtered,
    )
    by_task = {ANY_TASK: even}
    for task, path in definition.weights.items():
        file = _weights(name, path)
        if set(file.retrievers) != set(definition.members):
            raise ValueError(
                f"ensemble {name}: {path} has weights of {', '.join(file.retrievers)}, "
                f"the ensemble has {', '.join(definition.members)}"
            )
        of_member = dict(zip(file.retrievers, file.retriever_weights, strict=True))
        weights = tuple(of_member[member] for member in definition.members)
        if not any(weight > definition.retriever_filter for weight in weights):
            raise ValueError(
                f"ensemble {name}: {path} has no weight above {definition.retriever_filter:g}: nobody can win"
            )
        by_task[task] = Voting(
            similarities=dict(zip(file.similarities, file.similarity_weights, strict=True)),
            member_weights=weights,
            pooling=definition.pooling,
            threshold=definition.threshold,
            retriever_filter=definition.retriever_filter,
            drop_filtered=definition.drop_filtered,
        )
    return Roster(definition.members, by_task)


def _weights(name: str, path: Path) -> _WeightsFile:
    try:
        return _WeightsFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"ensemble {name}: {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"ensemble {name}: {path}: {place}: {first['msg']}".replace(": :", ":")) from None
    except ValueError as error:
        raise ValueError(f"ensemble {name}: {path} is not JSON: {error}") from None
