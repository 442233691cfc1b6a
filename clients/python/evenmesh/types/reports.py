"""Reports of runs and of single asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

Window = Literal["all", "hour", "day"]
"""The observations a report is about: all, or those of the last hour or the last 24 hours."""

WINDOWS: Final[tuple[Window, ...]] = ("all", "hour", "day")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of a measured quantity with its 95 % interval.

    Attributes:
        mean: over the defined values, in the quantity's unit; None when there are none.
        low: lower end of the interval; None with fewer than two values, or too few away from the lowest one.
        high: upper end of the interval; None where ``low`` is.
        count: defined values.
        undefined: values that were undefined and left out.
    """

    mean: float | None
    low: float | None
    high: float | None
    count: int
    undefined: int


@dataclass(frozen=True, slots=True)
class ExposureShare:
    """Exposure of one provider (or passage).

    Attributes:
        name: the provider; empty if unknown.
        exposure: expected exposure, summed over what is reported on; unit attention, 0 or more.
        share: fraction of all exposure, 0 to 1.
        target: target exposure over observations with labels; None without any.
        per_observation: exposure per observation, 0 where it was not shown; None where unknown.
    """

    name: str
    exposure: float
    share: float
    target: float | None
    per_observation: Estimate | None = None


@dataclass(frozen=True, slots=True)
class DegradationCount:
    """How often one stage degraded for one reason, in asks."""

    stage: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """Options that asks have in common, so that their measurements are comparable.

    Attributes:
        collection: the collection; empty for candidates sent along.
        retriever: the retriever by name.
        reranker: the reranker by name; ``none`` without one.
        generator: the generator's model by name.
        alpha: fairness dial, 0 to 100; None for deterministic rankings, and with a target.
        target: target of the sampling in words, such as ``disparity 0.3``; empty without one.
    """

    collection: str = ""
    retriever: str = ""
    reranker: str = ""
    generator: str = ""
    alpha: float | None = None
    target: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run, or a configuration over all runs, so far.

    Attributes:
        run_id: the run; empty for a configuration.
        num_observations: observations stored.
        num_rankings: sampled rankings in them.
        num_unanswered: samples that had no answer.
        ee_d: EE-D per observation (Kim and Diaz, section 3.3.1), squared attention.
        ee_d_norm: EE-D over its bound, 0 to 1.
        ee_r: EE-R per labelled observation, squared attention.
        ee_r_norm: EE-R over its bound, 0 or more.
        expected_utility: per observation with references, 0 to 1.
        normalized_expected_utility: over the largest utility of any run of that query and generator, 0 to 1.
        vote_agreement: share of the other answers that agree with the winner, per observation with a vote.
        retriever_error: share of samples whose passages lack the right answer.
        hallucination_error: share of samples whose passages lack the answer given.
        extraction_error: share of samples that took the wrong part of the right passages.
        lucky_guess: share of samples that are right in spite of passages that lack the answer.
        conversation_relevance: R per conversation.
        conversation_group_fairness: GF per conversation.
        conversation_combined: GFRC per conversation.
        providers: exposure per provider, most exposed first; at most 100.
        passages: exposure per passage, most exposed first; at most 100.
        stages: duration by stage name, in milliseconds.
        degradations: by stage and reason.
        started_at: first observation, UTC.
        updated_at: latest observation, UTC.
        window: which observations it is about.
        configuration: the configuration it is about; None for a run.
    """

    run_id: str
    num_observations: int
    num_rankings: int
    num_unanswered: int
    ee_d: Estimate
    ee_d_norm: Estimate
    ee_r: Estimate
    ee_r_norm: Estimate
    expected_utility: Estimate
    normalized_expected_utility: Estimate
    vote_agreement: Estimate
    retriever_error: Estimate
    hallucination_error: Estimate
    extraction_error: Estimate
    lucky_guess: Estimate
    conversation_relevance: Estimate
    conversation_group_fairness: Estimate
    conversation_combined: Estimate
    providers: tuple[ExposureShare, ...]
    passages: tuple[ExposureShare, ...]
    stages: Mapping[str, Estimate]
    degradations: tuple[DegradationCount, ...]
    started_at: datetime
    updated_at: datetime
    window: Window
    configuration: Configuration | None


@dataclass(frozen=True, slots=True)
class Run:
    """A run in a list: its id, its observations, and when the first and the latest came (UTC)."""

    run_id: str
    num_observations: int
    started_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """What was deleted of a run.

    Attributes:
        deleted: whether there was such a run.
        num_observations: its observations that were deleted.
    """

    deleted: bool
    num_observations: int


@dataclass(frozen=True, slots=True)
class ConfigurationSummary:
    """A configuration in a list: its observations, and when the first and the latest came (UTC)."""

    configuration: Configuration
    num_observations: int
    started_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ObservedPassage:
    """A passage that could have been shown; its provider and text are empty where they are not known."""

    passage_id: str
    provider: str
    text: str


@dataclass(frozen=True, slots=True)
class ObservedAnswer:
    """An answer, the rankings that led to it, and the passages that it cites; each an index from 0."""

    text: str
    samples: tuple[int, ...]
    cited: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ObservedAsk:
    """Passages that one ask showed, and its answers.

    Attributes:
        id: of the observation.
        run_id: its run.
        query_id: its query.
        question: the question; empty where texts are not stored.
        observed_at: when the ask ended, UTC.
        collection: where passages are from; empty for inline candidates.
        retriever: by name.
        reranker: by name; ``none`` without one.
        generator: the model by name.
        alpha: fairness dial; None for a deterministic ranking.
        seed: of the sampling; None for a deterministic ranking.
        candidates: the pool.
        shown: rankings that were given to the model: places in the pool from 0, best first.
        answers: the answers.
        useful: ids of useful passages; None where they are not known.
        references: right answers.
    """

    id: str
    run_id: str
    query_id: str
    question: str
    observed_at: datetime
    collection: str
    retriever: str
    reranker: str
    generator: str
    alpha: float | None
    seed: int | None
    candidates: tuple[ObservedPassage, ...]
    shown: tuple[tuple[int, ...], ...]
    answers: tuple[ObservedAnswer, ...]
    useful: tuple[str, ...] | None
    references: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Quantities that one observation measured.

    Attributes:
        observation_id: the observation.
        query_id: its query.
        configuration: configuration that made it.
        observed_at: when the ask ended, UTC.
        quantities: measured quantities by the name of their field in :class:`RunReport`; what is undefined is
            left out.
    """

    observation_id: str
    query_id: str
    configuration: Configuration
    observed_at: datetime
    quantities: Mapping[str, float]
