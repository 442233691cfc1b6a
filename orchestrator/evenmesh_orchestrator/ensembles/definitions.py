"""The ensembles of the settings, and the weights their answers vote with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evenmesh.evaluator.v1.evaluator_service_pb2 import VoteRequest
from evenmesh_orchestrator.expressions.parser import ExpressionError
from evenmesh_orchestrator.expressions.sources import SourceCatalogue

MIN_MEMBERS: Final = 2
"""Fewest expressions of an ensemble: one alone cannot vote."""
MAX_MEMBERS: Final = 20
"""Most expressions of an ensemble."""
ANY_TASK: Final = "*"
"""The task whose weights apply to every task without weights of its own."""


class EnsembleDefinition(BaseModel):
    """One ensemble of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    members: tuple[str, ...] = Field(min_length=MIN_MEMBERS, max_length=MAX_MEMBERS)
    """Expressions, each once."""
    similarities: dict[str, float] = Field(default_factory=lambda: {"token_f1": 1.0}, min_length=1)
    """Similarity measures of two answers, by the evaluator's names, each with a weight ≥ 0."""
    pooling: Literal["mean", "max", "majority", "plurality"] = "mean"
    threshold: float = Field(default=0.8, ge=0, le=1)
    """Similarity above which answers agree, for majority and plurality, [0, 1]."""
    retriever_filter: float = Field(default=0.1, ge=0, le=1)
    """Weight up to which a member's answer cannot win, [0, 1]."""
    drop_filtered: bool = False
    """Whether such answers have no vote for others either."""
    weights: dict[str, Path] = Field(default_factory=dict)
    """Files of weights by task, ``*`` for all others; ``evenmesh eval vote --tune … --json`` writes them."""


class _WeightsFile(BaseModel):
    """The required part of a file of weights; the rest of a vote study is ignored."""

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
class Ensemble:
    """The members of an ensemble, and how their answers vote by task; weights are in the members' order."""

    members: tuple[str, ...]
    by_task: Mapping[str, VoteRequest]

    def vote(self, task: str) -> VoteRequest:
        """Return how answers of a task vote."""
        return self.by_task.get(task) or self.by_task[ANY_TASK]


def read_ensembles(
    definitions: Mapping[str, EnsembleDefinition], sources: SourceCatalogue
) -> Mapping[str, Ensemble]:
    """Return the ensembles of the settings by name, names ascending.

    Args:
        definitions: by name.
        sources: the sources that their expressions can name.

    Raises:
        ValueError: an expression cannot be run, or a file of weights is invalid or belongs to other members.
            The message names the ensemble.
    """
    return dict(sorted((name, _ensemble(name, one, sources)) for name, one in definitions.items()))


def equal_weights(members: tuple[str, ...]) -> Ensemble:
    """Return an ensemble whose members have equal weights, with the defaults of the settings."""
    definition = EnsembleDefinition.model_construct(members=members)
    return Ensemble(members, {ANY_TASK: _vote(definition, (1.0,) * len(members), definition.similarities)})


def _ensemble(name: str, definition: EnsembleDefinition, sources: SourceCatalogue) -> Ensemble:
    members = definition.members
    known: set[str] = set()
    for member in members:
        try:
            text = sources.read(member).text
        except ExpressionError as error:
            raise ValueError(f"ensemble {name}: {member!r}: {error}") from None
        if text in known:
            raise ValueError(f"ensemble {name}: has {text} twice")
        known.add(text)
    by_task = {ANY_TASK: _vote(definition, (1.0,) * len(members), definition.similarities)}
    for task, path in definition.weights.items():
        file = _weights(name, path)
        if set(file.retrievers) != set(members):
            raise ValueError(
                f"ensemble {name}: {path} has weights of {', '.join(file.retrievers)}, "
                f"the ensemble has {', '.join(members)}"
            )
        of_member = dict(zip(file.retrievers, file.retriever_weights, strict=True))
        if not any(weight > definition.retriever_filter for weight in of_member.values()):
            raise ValueError(
                f"ensemble {name}: {path} has no weight above {definition.retriever_filter:g}: nobody can win"
            )
        similarities = dict(zip(file.similarities, file.similarity_weights, strict=True))
        by_task[task] = _vote(definition, [of_member[member] for member in members], similarities)
    return Ensemble(members, by_task)


def _vote(
    definition: EnsembleDefinition, weights: Sequence[float], similarities: Mapping[str, float]
) -> VoteRequest:
    return VoteRequest(
        retriever_weights=weights,
        similarities=similarities.keys(),
        similarity_weights=similarities.values(),
        pooling=VoteRequest.Pooling.Value(f"POOLING_{definition.pooling.upper()}"),
        threshold=definition.threshold,
        retriever_filter=definition.retriever_filter,
        drop_filtered=definition.drop_filtered,
    )


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
