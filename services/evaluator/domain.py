"""What the evaluator speaks: observations as they were made, and what is known of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ragcore.arrays import IntArray


class Stage(StrEnum):
    """A stage of the flow of an ask."""

    RETRIEVE = "retrieve"
    RERANK = "rerank"
    GENERATE = "generate"
    OBSERVE = "observe"


class UtilityMetric(StrEnum):
    """How one answer is scored against references; every value lies in [0, 1]."""

    EXACT_MATCH = "exact_match"
    TOKEN_F1 = "token_f1"  # noqa: S105 - a metric, not a secret
    ROUGE1 = "rouge1"
    ROUGE2 = "rouge2"
    ROUGE_L = "rougeL"
    ACCURACY = "accuracy"


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
class Observation:
    """What one ask showed and said, as far as it is measured; ``payload`` keeps all of it.

    ``shown`` is [N, k]: zero-based indices into ``passage_ids``, best first, one row per sampled ranking.
    ``providers`` runs beside ``passage_ids``, with an empty string where the provider is unknown.
    Times are microseconds since 1970 (UTC), durations milliseconds.
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
    collection: str = ""
    retriever: str = ""
    reranker: str = ""
    generator: str = ""
    alpha: float | None = None
    stage_ms: Mapping[Stage, float] = field(default_factory=dict)
    degradations: Sequence[tuple[Stage, str]] = ()
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class ProviderExposure:
    """Expected exposure of one provider, and its target where labels say what was deserved (else None)."""

    exposure: float
    target: float | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one observation measured; None where a quantity is undefined.

    ``quantities`` holds ``ee_d``, ``ee_d_norm``, ``ee_r``, ``ee_r_norm`` and ``expected_utility``.
    """

    quantities: Mapping[str, float | None]
    num_rankings: int
    num_unanswered: int
    providers: Mapping[str, ProviderExposure]


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
    """Exposure of one provider in a run: summed attention, its share of all of it, and the summed target."""

    name: str
    exposure: float
    share: float
    target: float | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list; ``sequence`` grows with every new run and never changes."""

    sequence: int
    run_id: str
    num_observations: int
    started_at_us: int
    updated_at_us: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run so far; ``estimates`` by quantity as in :class:`Measurement`, ``stages`` in milliseconds."""

    run_id: str
    num_observations: int
    num_rankings: int
    num_unanswered: int
    started_at_us: int
    updated_at_us: int
    estimates: Mapping[str, Estimate]
    stages: Mapping[Stage, Estimate]
    providers: Sequence[ExposureShare]
    degradations: Sequence[tuple[Stage, str, int]]
