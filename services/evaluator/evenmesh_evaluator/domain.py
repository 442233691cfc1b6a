"""Domain types of the evaluator: observations, their measurements, and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from evenmesh_core import group_fairness
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_kit.security.caller import DEFAULT_TENANT

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
"""Quantities measured of every observation, by name, with the range of their values and intervals."""

CONVERSATION: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "conversation_relevance": (0.0, math.inf),
        "conversation_group_fairness": (0.0, 1.0),
        "conversation_combined": (0.0, math.inf),
    }
)
"""Quantities measured of every conversation, by name, with their range."""

NORMALIZED: Final = "normalized_expected_utility"
"""Expected utility over u_max, [0, 1]; computed for each report, as u_max may still rise."""


class Stage(StrEnum):
    """A stage of the flow of an ask."""

    RETRIEVE = "retrieve"
    RERANK = "rerank"
    GENERATE = "generate"
    OBSERVE = "observe"


class UtilityMetric(StrEnum):
    """A score of one answer against references, in [0, 1]."""

    EXACT_MATCH = "exact_match"
    TOKEN_F1 = "token_f1"  # noqa: S105 - a metric, not a secret
    ROUGE1 = "rouge1"
    ROUGE2 = "rouge2"
    ROUGE_L = "rougeL"
    ACCURACY = "accuracy"
    RATING = "rating"


class Window(StrEnum):
    """The observations of a report, by their time.

    The last hour is the current minute and the 59 before it, the last day the current hour and the 23 before.
    """

    ALL = "all"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings that comparable asks share.

    ``alpha`` None means deterministic rankings, or a ``target``, for which each query has a dial of its own.
    """

    collection: str = ""
    retriever: str = ""
    reranker: str = ""
    generator: str = ""
    alpha: float | None = None
    target: str = ""


Scope = str | Configuration
"""The subject of a report: a run by its id, or a configuration over all runs."""


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One answer, the indices of the sampled rankings that led to it, and of the candidates that it cites."""

    text: str
    samples: tuple[int, ...]
    cited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Labels:
    """Known useful passages and right answers; ``useful`` is None where usefulness is unknown."""

    useful: frozenset[str] | None = None
    references: tuple[str, ...] = ()
    metric: UtilityMetric = UtilityMetric.TOKEN_F1


@dataclass(frozen=True, slots=True)
class JudgedConversation:
    """Nuggets of the system turns, and the target of each attribute; ``patience`` in words."""

    turns: Sequence[Sequence[group_fairness.Nugget]]
    attributes: Mapping[str, group_fairness.Attribute]
    patience: float
    alpha: float
    method: Literal["independent", "cumulative"] = "independent"
    irrelevant_turns: Literal["ignore", "uniform"] = "ignore"
    turn_weights: Literal["equal", "position"] = "equal"
    attribute_weights: Mapping[str, float] | None = None
    """Weight of each attribute in group fairness, sum 1; None weighs all alike."""
    from_transcript: bool = False
    """Whether the turns were read from a transcript, to which their errors then refer."""


@dataclass(frozen=True, slots=True)
class ObservedConversation:
    """The conversation so far that an ask was a turn of; ``id`` is unique within the run."""

    id: str
    judged: JudgedConversation


@dataclass(frozen=True, slots=True)
class Observation:
    """The measured part of one ask; ``payload`` is the whole message.

    ``shown`` is [N, k]: zero-based indices into ``passage_ids``, best first, one row per sampled ranking or
    retriever of an ensemble. ``providers`` and ``texts`` run parallel to ``passage_ids``, with an
    empty string for an unknown provider or text. ``vote_winner`` is a zero-based index into ``answers``. The
    same question must have the same ``query_id`` in all runs: utilities are compared by it. Times are
    microseconds since 1970 (UTC), durations milliseconds. Ids, runs and utilities belong to ``tenant`` alone.
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
    merit_shares: FloatArray | None = None
    """Vector parallel to ``passage_ids``: the share of a context that each deserves; None if unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Exposed:
    """Expected exposure of passages or providers in one observation: unique names, and parallel vectors.

    ``target`` is None where no labels define it.
    """

    names: Sequence[str]
    exposure: FloatArray
    target: FloatArray | None


@dataclass(frozen=True, slots=True, eq=False)
class Provided:
    """What one observation says of each known provider of its candidates: parallel vectors.

    ``shown`` and ``cited`` are 0 or 1. ``exposure`` and ``target`` are shares of a context in [0, 1];
    ``target`` is None where merit is unknown.
    """

    names: Sequence[str]
    shown: IntArray
    cited: IntArray
    exposure: FloatArray
    target: FloatArray | None


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """The scores of one observation; None where a quantity is undefined.

    ``quantities`` holds every name of :data:`MEASURED`, and those of :data:`CONVERSATION` where the ask was a
    turn of a conversation. ``largest_utility`` is that of the best answer. Exposure is None where no passage
    could be shown.
    """

    quantities: Mapping[str, float | None]
    num_rankings: int
    num_unanswered: int
    largest_utility: float | None = None
    providers: Exposed | None = None
    passages: Exposed | None = None
    provided: Provided | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of the defined values with its 95 % interval; None where there are too few values."""

    mean: float | None
    low: float | None
    high: float | None
    count: int
    undefined: int


@dataclass(frozen=True, slots=True)
class ExposureShare:
    """Exposure of one passage or provider: its sum, its share of all exposure, and the sum of its target.

    ``per_observation`` is over every observation that has exposure, with 0 where the name was not shown.
    """

    name: str
    exposure: float
    share: float
    target: float | None
    per_observation: Estimate


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one tenant may keep: bytes of observations, runs, and configurations; each [1, inf)."""

    bytes: int = 2**32
    runs: int = 10_000
    configurations: int = 10_000


@dataclass(frozen=True, slots=True)
class ScopeSummary:
    """A run or a configuration in a list; its ``sequence`` counts those of its tenant, from 1."""

    sequence: int
    scope: Scope
    num_observations: int
    started_at_us: int
    updated_at_us: int


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """The defined quantities of one stored observation; ``sequence`` is its place in the order of storing."""

    sequence: int
    observation_id: str
    query_id: str
    configuration: Configuration
    observed_at_us: int
    quantities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProviderDay:
    """What a configuration showed of a provider on one day, UTC; days count from 1970-01-01.

    Sums are over the asks that found it, those with ``target_`` and ``owed_`` over the ``num_targeted`` of
    them with known merit; owed is target minus exposure.
    """

    configuration: Configuration
    day: int
    num_found: int = 0
    num_shown: int = 0
    num_cited: int = 0
    num_targeted: int = 0
    exposure: float = 0.0
    exposure_squares: float = 0.0
    target: float = 0.0
    target_squares: float = 0.0
    owed_squares: float = 0.0
    exposure_targeted: float = 0.0
    """Exposure over the asks with known merit."""


@dataclass(frozen=True, slots=True)
class ProviderBalance:
    """What a provider deserved and was given, in contexts, faded by age."""

    provider: str
    target: float
    exposure: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run or a configuration; ``estimates`` by quantity, ``stages`` in milliseconds.

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
