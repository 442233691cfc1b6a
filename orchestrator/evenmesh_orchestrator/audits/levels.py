"""The levels of an audit, one per policy and fairness dial: their rankings, outcomes and reports."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError
from evenmesh_core import plackett_luce
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.confidence_sequences import empirical_bernstein_sequence
from evenmesh_core.oracle import oracle_rankings
from evenmesh_core.utility import expected_utility, maximum_utility
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_orchestrator.asks import contexts as rankings
from evenmesh_orchestrator.asks.exposure import measure, measure_exactly
from evenmesh_orchestrator.asks.ranking import Scored
from evenmesh_orchestrator.audits.answers import Outcome
from evenmesh_orchestrator.domain import Answered, Audit, Contexts, Pool

ORACLE: Final = "oracle"
"""Name of the retriever in observations of oracle rankings."""


@dataclass(slots=True)
class Level:
    """The rankings of one policy at one fairness dial, and their outcomes so far."""

    policy: pb.AuditPolicy.ValueType
    alpha: float | None
    contexts: Contexts
    inclusion: FloatArray | None
    """Exact inclusion probabilities of the pool's passages, where they are known."""
    num_answers: int
    """Rankings to answer, from the first."""
    outcomes: list[Outcome | None] = field(default_factory=list)
    """One per ranking that was processed."""
    utilities: list[float] = field(default_factory=list)
    """Of the rankings that have one, in their order."""
    interval: tuple[float, float] | None = None
    """Of the expected utility."""
    stopped: bool = False
    """Whether the remaining rankings are skipped."""

    def context_keys(self) -> Iterator[bytes]:
        """Yield a key of each context to answer."""
        return (row.tobytes() for row in self.contexts.rows[: self.num_answers])

    def shown(self) -> Contexts:
        """Return the contexts that were processed."""
        count = len(self.outcomes)
        log_probabilities = self.contexts.log_probabilities
        return Contexts(
            self.contexts.rows[:count], None if log_probabilities is None else log_probabilities[:count]
        )

    def answered(self) -> list[Answered]:
        """Return the answers, each with the rankings that led to it, without citations."""
        return [
            Answered(outcome, samples, ())
            for _, samples in rankings.distinct(self.shown(), self.num_answers)
            if (outcome := self.outcomes[samples[0]]) is not None and not isinstance(outcome, MeshError)
        ]


@dataclass(frozen=True, slots=True)
class RankedLevels:
    """Contexts without sampling and at each fairness dial, with exact inclusion probabilities."""

    deterministic: Contexts
    sampled: Sequence[Contexts]
    inclusion: Sequence[FloatArray | None]
    reranker: str = "none"
    model_version: str = ""


def contexts_to_answer(levels: Sequence[Level]) -> Iterator[IntArray]:
    """Yield distinct contexts in the order of their first sample; skip levels that have stopped."""
    seen: set[bytes] = set()
    for level in levels:
        for row in level.contexts.rows[: level.num_answers]:
            if level.stopped:
                break
            key = row.tobytes()
            if key not in seen:
                seen.add(key)
                yield row


def draw_contexts(audit: Audit, pool: Pool, scored: Scored) -> RankedLevels:
    """Return the contexts of a list without sampling and at each fairness dial."""
    sampled = []
    for alpha in audit.alphas:
        sampling = replace(audit.sampling, alpha=alpha)
        drawn = rankings.sampled(scored.scores, audit.ask.question, sampling, len(scored.best))
        sampled.append(Contexts(scored.rows[drawn.rows], drawn.log_probabilities))
    deterministic = Contexts(scored.best[None, :], None)
    exact = inclusion_of(audit, pool, scored)
    return RankedLevels(deterministic, sampled, exact, scored.reranker, scored.model_version)


def inclusion_of(audit: Audit, pool: Pool, scored: Scored) -> list[FloatArray | None]:
    """Return exact inclusion probabilities of the pool's passages at each fairness dial."""
    exact: list[FloatArray | None] = []
    for alpha in audit.alphas:
        weights = plackett_luce.log_weights(scored.scores, alpha)
        of_pool = np.zeros(len(pool.passages))
        of_pool[scored.rows] = plackett_luce.inclusion_probabilities(weights, k=len(scored.best))
        exact.append(of_pool)
    return exact


def levels_of(audit: Audit, pool: Pool, ranked: RankedLevels) -> list[Level]:
    """Return all levels in the order of the reply."""
    wanted = audit.ask.num_answers
    levels = [Level(pb.AUDIT_POLICY_DETERMINISTIC, None, ranked.deterministic, None, min(1, wanted))]
    for alpha, contexts, exact in zip(audit.alphas, ranked.sampled, ranked.inclusion, strict=True):
        levels.append(Level(pb.AUDIT_POLICY_SAMPLED, alpha, contexts, exact, wanted))
    useful = frozenset(audit.ask.labels.useful_passage_ids)
    mask = [passage.id in useful for passage in pool.passages]
    if wanted and audit.num_oracle and any(mask):
        stream = zlib.crc32(f"{ORACLE} {audit.ask.question}".encode())
        rng = np.random.default_rng([audit.sampling.seed, stream])
        k = ranked.deterministic.rows.shape[1]
        rows = oracle_rankings(mask, num_rankings=audit.num_oracle, k=k, rng=rng)
        levels.append(Level(pb.AUDIT_POLICY_ORACLE, None, Contexts(rows, None), None, len(rows)))
    return levels


def is_narrow_enough(audit: Audit, level: Level) -> bool:
    """Return whether a fairness dial needs no more samples; update its interval."""
    if level.policy != pb.AUDIT_POLICY_SAMPLED or not level.utilities:
        return False
    last = len(level.outcomes) == len(level.contexts.rows)
    if audit.until_width is None and not last:
        return False
    known = empirical_bernstein_sequence(level.utilities, level=audit.level)
    level.interval = (float(known.low[-1]), float(known.high[-1]))
    return audit.until_width is not None and float(known.width[-1]) <= audit.until_width


def sample_of(
    level: Level, sample: int, pool: Pool, row: IntArray, outcome: Outcome | None, utility: float | None
) -> pb.AuditSample:
    """Return the event of one ranking."""
    log_probabilities = level.contexts.log_probabilities
    event = pb.AuditSample(
        policy=level.policy,
        alpha=level.alpha or 0.0,
        sample=sample,
        passage_ids=[pool.passages[index].id for index in row],
        log_probability=None if log_probabilities is None else float(log_probabilities[sample]),
        utility=utility,
    )
    if isinstance(outcome, MeshError):
        event.error.CopyFrom(item_error(outcome))
    elif outcome is not None:
        event.answered = True
        event.answer, event.model = outcome.text, outcome.model
        event.model_version = outcome.model_version
    return event


def reports_of(audit: Audit, pool: Pool, levels: Sequence[Level]) -> list[pb.ExposureReport]:
    """Return the report of each level, once all are processed: they share the largest utility."""
    runs = [level.utilities for level in levels if level.utilities]
    u_max = maximum_utility(runs) if runs else None
    return [_report(audit, pool, level, u_max) for level in levels]


def _report(audit: Audit, pool: Pool, level: Level, u_max: float | None) -> pb.ExposureReport:
    shown = level.shown()
    report = measure(pool, shown, (), audit.ask.labels)
    mean = expected_utility(level.utilities) if level.utilities else None
    if mean is not None:
        report.expected_utility = mean
    exact: tuple[float | None, float | None] = (None, None)
    if level.inclusion is not None:
        exact = measure_exactly(pool, level.inclusion, shown.rows.shape[1], audit.ask.labels)
    low, high = level.interval or (None, None)
    report.audit.CopyFrom(
        pb.AuditLevel(
            policy=level.policy,
            alpha=level.alpha,
            num_rankings=len(level.outcomes),
            num_answered=sum(not isinstance(one, MeshError | None) for one in level.outcomes),
            u_max=u_max,
            normalized_expected_utility=None if mean is None or not u_max else min(mean / u_max, 1.0),
            expected_utility_low=low,
            expected_utility_high=high,
            stopped_early=level.stopped,
            exact_ee_d_norm=exact[0],
            exact_ee_r_norm=exact[1],
            exact_exposure=() if level.inclusion is None else level.inclusion.tolist(),
        )
    )
    return report
