"""What the evaluator speaks: observations as they were made, and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from ragcore import group_fairness
from ragcore.arrays import FloatArray, IntArray

MEASURED: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "ee_d": (0.0, math.inf),
        "ee_d_norm": (0.0, 1.0),
        "ee_r": (0.0, math.inf),
        "ee_r_norm": (0.0, 1.0),
        "expected_utility": (0.0, 1.0),
        "vote_agreement": (0.0, 1.0),
        "retriever_error": (0.0, 1.0),
        "hallucination_error": (0.0, 1.0),
        "extraction_error": (0.0, 1.0),
        "lucky_guess": (0.0, 1.0),
    }
)
"""What is measured of every observation, by name, with the range its values and intervals lie in."""

CONVERSATION: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "conversation_relevance": (0.0, math.inf),
        "conversation_group_fairness": (0.0, 1.0),
        "conversation_combined": (0.0, math.inf),
    }
)
"""What is measured of every conversation, by name, with its range."""

NORMALIZED: Final = "normalized_expected_utility"
"""Expected utility over u_max, [0, 1]; known only when it is asked for, as u_max may still rise."""


class Stage(StrEnum):
    """A stage of the flow of an ask."""

    RETRIEVE = "retrieve"
    RERANK = "rerank"
    GENERATE = "generate"
    OBSERVE = "observe"


DEFAULT_TENANT: Final = "default"
"""Whose observations those are that no tenant is named for."""


class UtilityMetric(StrEnum):
    """How one answer is scored against references; every value lies in [0, 1]."""

    EXACT_MATCH = "exact_match"
    TOKEN_F1 = "token_f1"  # noqa: S105 - a metric, not a secret
    ROUGE1 = "rouge1"
    ROUGE2 = "rouge2"
    ROUGE_L = "rougeL"
    ACCURACY = "accuracy"


class Window(StrEnum):
    """The observations that a report is about, by when they were made.

    The last hour is the minute that runs and the 59 before it, the last day the hour that runs and the 23
    before it.
    """

    ALL = "all"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What asks have in common that makes their measurements comparable; ``alpha`` None is deterministic."""

    collection: str = ""
    retriever: str = ""
    reranker: str = ""
    generator: str = ""
    alpha: float | None = None


Scope = str | Configuration
"""What a report is about: a run by its id, or a configuration over all runs."""


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One answer and the zero-based sampled rankings it was written from."""

    text: str
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """What is known to be right; ``useful`` is None where usefulness is unknown."""

    useful: frozenset[str] | None = None
    references: tuple[str, ...] = ()
    metric: UtilityMetric = UtilityMetric.TOKEN_F1


@dataclass(frozen=True, slots=True)
class ConversationQuestion:
    """Nuggets of system turns, and targets by attribute; ``patience`` in words."""

    turns: Sequence[Sequence[group_fairness.Nugget]]
    attributes: Mapping[str, group_fairness.Attribute]
    patience: float
    alpha: float
    method: Literal["independent", "cumulative"] = "independent"
    irrelevant_turns: Literal["ignore", "uniform"] = "ignore"
    from_transcript: bool = False
    """Whether the turns were read from a transcript, which is then what is at fault for them."""


@dataclass(frozen=True, slots=True)
class ObservedConversation:
    """The conversation so far that an ask was a turn of; ``id`` within the run."""

    id: str
    judged: ConversationQuestion


@dataclass(frozen=True, slots=True)
class Observation:
    """What one ask showed and said, as far as it is measured; ``payload`` keeps all of it.

    ``shown`` is [N, k]: zero-based indices into ``passage_ids``, best first, one row per sampled ranking, or
    per retriever of an ensemble. ``providers`` and ``texts`` run beside ``passage_ids``, with an empty string
    where the provider or the text is unknown. ``vote_winner`` is a zero-based index into ``answers``. The
    same question must carry the same ``query_id`` in all runs: utilities are compared by it. Times are
    microseconds since 1970 (UTC), durations milliseconds. ``tenant`` is whose it is: ids, runs and utilities
    of other tenants have nothing to do with it.
    """

    id: str
    run_id: str
    query_id: str
    observed_at_us: int
    passage_ids: Sequence[str]
    providers: Sequence[str]
    shown: IntArray
    answers: Sequence[SampledAnswer]
    labels: Labels
    texts: Sequence[str] = ()
    configuration: Configuration = field(default_factory=Configuration)
    stage_ms: Mapping[Stage, float] = field(default_factory=dict)
    degradations: Sequence[tuple[Stage, str]] = ()
    vote_winner: int | None = None
    conversation: ObservedConversation | None = None
    payload: bytes = b""
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, eq=False)
class Exposed:
    """Expected exposure of passages or providers in one observation: names, each once, and vectors beside.

    ``target`` is None where no labels say what was deserved.
    """

    names: Sequence[str]
    exposure: FloatArray
    target: FloatArray | None


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What one observation measured; None where a quantity is undefined.

    ``quantities`` holds every name of :data:`MEASURED`, and those of :data:`CONVERSATION` where the ask was a
    turn of one. ``largest_utility`` is that of the best answer. Exposure is None where nothing could be
    shown.
    """

    quantities: Mapping[str, float | None]
    num_rankings: int
    num_unanswered: int
    largest_utility: float | None = None
    providers: Exposed | None = None
    passages: Exposed | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of the defined values with its 95 % interval, None where there are too few of them."""

    mean: float | None
    low: float | None
    high: float | None
    count: int
    undefined: int


@dataclass(frozen=True, slots=True)
class ExposureShare:
    """Exposure of one passage or provider: summed attention, its share of all of it, and the summed target.

    ``per_observation`` is over every observation that has exposure, 0 where it was not shown.
    """

    name: str
    exposure: float
    share: float
    target: float | None
    per_observation: Estimate


@dataclass(frozen=True, slots=True)
class ScopeSummary:
    """A run or a configuration in a list; ``sequence`` grows with every new one and never changes."""

    sequence: int
    scope: Scope
    num_observations: int
    started_at_us: int
    updated_at_us: int


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """What one stored observation measured; ``quantities`` holds what is defined.

    ``sequence`` is its place in the order of storing.
    """

    sequence: int
    observation_id: str
    query_id: str
    configuration: Configuration
    observed_at_us: int
    quantities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run or a configuration so far; ``estimates`` by quantity, ``stages`` in milliseconds.

    ``estimates`` holds every name of :data:`MEASURED`, of :data:`CONVERSATION`, and :data:`NORMALIZED`.
    Times are None where the window is empty.
    """

    scope: Scope
    window: Window
    num_observations: int
    num_rankings: int
    num_unanswered: int
    started_at_us: int | None
    updated_at_us: int | None
    estimates: Mapping[str, Estimate]
    stages: Mapping[Stage, Estimate]
    providers: Sequence[ExposureShare]
    passages: Sequence[ExposureShare]
    degradations: Sequence[tuple[Stage, str, int]]
