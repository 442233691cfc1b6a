"""What an audit looks at, policy by policy and dial by dial, and what came of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from meshkit.errors import MeshError
from orchestrator import contexts as rankings
from orchestrator.audits.answers import Outcome
from orchestrator.domain import (
    Answered,
    Audit,
    Contexts,
    LevelReported,
    Policy,
    Pool,
    Sampled,
)
from orchestrator.exposure import measure, measure_exactly
from orchestrator.expressions.running import Scored
from ragcore import plackett_luce
from ragcore.arrays import FloatArray, IntArray
from ragcore.confidence_sequences import empirical_bernstein_sequence
from ragcore.oracle import oracle_rankings
from ragcore.utility import expected_utility, maximum_utility

ORACLE: Final = "oracle"
"""The retriever's name in what the evaluator is told of an oracle's rankings."""


@dataclass(slots=True)
class Level:
    """The rankings of one policy at one fairness dial, and what has come of them."""

    policy: Policy
    alpha: float | None
    contexts: Contexts
    inclusion: FloatArray | None
    """Exact inclusion probabilities of the pool's passages, where they are known."""
    num_answers: int
    """Rankings to answer, from the first."""
    outcomes: list[Outcome | None] = field(default_factory=list)
    """One for each ranking that was looked at."""
    utilities: list[float] = field(default_factory=list)
    """Of the rankings that have one, in their order."""
    interval: tuple[float, float] | None = None
    """Of the expected utility."""
    stopped: bool = False
    """Whether the rest was not looked at."""

    def names(self) -> Iterator[bytes]:
        """Names of the contexts to answer."""
        return (row.tobytes() for row in self.contexts.rows[: self.num_answers])

    def shown(self) -> Contexts:
        """The contexts that were looked at."""
        count = len(self.outcomes)
        chances = self.contexts.log_probabilities
        return Contexts(self.contexts.rows[:count], None if chances is None else chances[:count])

    def answered(self) -> list[Answered]:
        """The answers, each with the rankings that led to it; nothing is cited."""
        return [
            Answered(outcome, samples, ())
            for _, samples in rankings.distinct(self.shown(), self.num_answers)
            if (outcome := self.outcomes[samples[0]]) is not None and not isinstance(outcome, MeshError)
        ]


@dataclass(frozen=True, slots=True)
class Arranged:
    """What an audit ranks: contexts without sampling and at each fairness dial."""

    deterministic: Contexts
    sampled: Sequence[Contexts]
    inclusion: Sequence[FloatArray | None]
    reranker: str
    model_version: str


def feed_of(levels: Sequence[Level]) -> Iterator[IntArray]:
    """Contexts to answer in the order of their first sample; none of a level that has stopped."""
    seen: set[bytes] = set()
    for level in levels:
        for row in level.contexts.rows[: level.num_answers]:
            if level.stopped:
                break
            key = row.tobytes()
            if key not in seen:
                seen.add(key)
                yield row


def draw_contexts(audit: Audit, found: Pool, scored: Scored) -> Arranged:
    """The contexts of a list without sampling and at each fairness dial."""
    sampled = []
    for alpha in audit.alphas:
        draw = replace(audit.sampling, alpha=alpha)
        drawn = rankings.sampled(scored.scores, audit.ask.question, draw, scored.k)
        sampled.append(Contexts(scored.rows[drawn.rows], drawn.log_probabilities))
    first = Contexts(scored.rows[None, : scored.k], None)
    exact = inclusion_of(audit, found, scored)
    return Arranged(first, sampled, exact, scored.reranker, scored.model_version)


def inclusion_of(audit: Audit, found: Pool, scored: Scored) -> list[FloatArray | None]:
    """Exact inclusion probabilities of the pool's passages at each fairness dial."""
    exact: list[FloatArray | None] = []
    for alpha in audit.alphas:
        weights = plackett_luce.log_weights(scored.scores, alpha)
        of_pool = np.zeros(len(found.passages))
        of_pool[scored.rows] = plackett_luce.inclusion_probabilities(weights, k=scored.k)
        exact.append(of_pool)
    return exact


def levels_of(audit: Audit, found: Pool, arranged: Arranged) -> list[Level]:
    """Everything there is to look at, in the order of the reply."""
    wanted = audit.ask.num_answers
    levels = [Level(Policy.DETERMINISTIC, None, arranged.deterministic, None, min(1, wanted))]
    for alpha, contexts, exact in zip(audit.alphas, arranged.sampled, arranged.inclusion, strict=True):
        levels.append(Level(Policy.SAMPLED, alpha, contexts, exact, wanted))
    useful = audit.ask.labels.useful or frozenset()
    mask = [passage.id in useful for passage in found.passages]
    if wanted and audit.num_oracle and any(mask):
        rng = np.random.default_rng(
            [audit.sampling.seed, zlib.crc32(f"{ORACLE} {audit.ask.question}".encode())]
        )
        k = arranged.deterministic.rows.shape[1]
        rows = oracle_rankings(mask, num_rankings=audit.num_oracle, k=k, rng=rng)
        levels.append(Level(Policy.ORACLE, None, Contexts(rows, None), None, len(rows)))
    return levels


def narrow_enough(audit: Audit, level: Level) -> bool:
    """Whether a fairness dial needs no more samples; notes its interval."""
    if level.policy is not Policy.SAMPLED or not level.utilities:
        return False
    last = len(level.outcomes) == len(level.contexts.rows)
    if audit.until_width is None and not last:
        return False
    known = empirical_bernstein_sequence(level.utilities, level=audit.level)
    level.interval = (float(known.low[-1]), float(known.high[-1]))
    return audit.until_width is not None and float(known.width[-1]) <= audit.until_width


def sampled_of(
    level: Level, sample: int, found: Pool, row: IntArray, outcome: Outcome | None, value: float | None
) -> Sampled:
    """What one ranking did."""
    chances = level.contexts.log_probabilities
    return Sampled(
        policy=level.policy,
        alpha=level.alpha,
        sample=sample,
        passage_ids=tuple(found.passages[index].id for index in row),
        log_probability=None if chances is None else float(chances[sample]),
        answer=None if isinstance(outcome, MeshError) else outcome,
        error=outcome if isinstance(outcome, MeshError) else None,
        utility=value,
    )


def reports_of(audit: Audit, found: Pool, levels: Sequence[Level]) -> list[LevelReported]:
    """What each level did, once all have been looked at: the largest utility is that of all of them."""
    runs = [level.utilities for level in levels if level.utilities]
    u_max = maximum_utility(runs) if runs else None
    return [_report(audit, found, level, u_max) for level in levels]


def _report(audit: Audit, found: Pool, level: Level, u_max: float | None) -> LevelReported:
    shown = level.shown()
    exposure = measure(found, shown, (), audit.ask.labels)
    mean = expected_utility(level.utilities) if level.utilities else None
    exact: tuple[float | None, float | None] = (None, None)
    if level.inclusion is not None:
        exact = measure_exactly(found, level.inclusion, shown.rows.shape[1], audit.ask.labels)
    return LevelReported(
        policy=level.policy,
        alpha=level.alpha,
        exposure=replace(exposure, expected_utility=mean),
        num_rankings=len(level.outcomes),
        num_answered=sum(not isinstance(one, MeshError | None) for one in level.outcomes),
        u_max=u_max,
        normalized_expected_utility=None if mean is None or not u_max else min(mean / u_max, 1.0),
        expected_utility_interval=level.interval,
        stopped_early=level.stopped,
        exact_ee_d_norm=exact[0],
        exact_ee_r_norm=exact[1],
    )
