"""The computation of one round: train a candidate, choose how its scores are fused, and compare it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.ium import fusing
from evenmesh_training.ium.gate import Gate
from evenmesh_training.ium.learning import Example, Learned, Options, learn
from evenmesh_training.online.candidates import Candidate, Parameters
from evenmesh_training.online.comparison import MARGIN, Comparison, compare
from evenmesh_training.online.reported import ReportedQuery, with_gains
from evenmesh_training.online.settings import OnlineSettings
from evenmesh_training.online.training_examples import RoundData, TrainingExample

ADAPTER_RATE: Final = 1e-3
"""Learning rate of an adapter, half of which starts at zero."""
_FULL_RATE: Final = 1e-5
_MICRO_BATCH: Final = 32
_LEARNING_COST: Final = 3
"""Time to learn from a passage, over the time to score it: the gradient takes two thirds of it."""
_LEARN: Final = "learn"
_CHOOSE: Final = "to choose a fusion"
_SERVED: Final = "that were held back, by what serves"
_LEARNED: Final = "that were held back, by what was learned"
_GENERAL_SERVED: Final = "of no agent, by what serves"
_GENERAL_LEARNED: Final = "of no agent, by what was learned"

ProgressCallback = Callable[[float, str], None]
"""Receives the share of a round's work that is done, [0, 1], and what it does, in one line."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a round.

    Attributes:
        candidate: what was trained or fused anew.
        learned: the training of its parameters; None if they stay.
        comparison: the candidate against what serves; None if it was stopped before its end.
        general: the same on the questions of the gate; None without a gate, and where parameters stay.
    """

    candidate: Candidate
    learned: Learned | None
    comparison: Comparison | None = None
    general: Comparison | None = None


def options_of(settings: OnlineSettings) -> Options:
    """Return the options of learning. Online training never withholds ids (section 5.1)."""
    rate = settings.learning_rate
    if rate is None:
        rate = ADAPTER_RATE if settings.parameters == "adapter" else _FULL_RATE
    return Options(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        micro_batch=min(_MICRO_BATCH, settings.batch_size),
        learning_rate=rate,
        max_length=settings.max_length,
        unknown_share=0.0,
        seed=settings.seed,
    )


def maximise(
    candidate: Candidate,
    served: Parameters,
    agent: Agent,
    data: RoundData,
    options: Options,
    *,
    level: float,
    margin: float = MARGIN,
    gate: Gate | None = None,
    on_progress: ProgressCallback = lambda *_: None,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train a candidate, choose its fusion, and compare it with what serves.

    Args:
        candidate: changed.
        served: what serves the agent now.
        agent: the agent.
        data: what to learn from, to choose by, and to compare on.
        options: how to learn.
        level: of the tests, (0, 1).
        margin: loss of nDCG that is accepted, (0, 1).
        gate: questions of no agent, on which it must not be worse either; None: none.
        on_progress: called after each step, and after each query that is ranked.
        checkpoint: file from which a stopped training resumes.
        stop: called after each step and before each query is ranked; True ends the round early.

    Raises:
        FloatingPointError: the training diverges.
        OSError: the checkpoint cannot be written.
    """
    learns = bool(data.examples)
    judged = sum(len(one.passages) for one in data.examples)
    asked = sum(one.num_ranked for one in data.held_out)
    general_size = gate.num_passages if gate is not None and learns else 0
    progress = _Progress(
        {
            _LEARN: _LEARNING_COST * options.epochs * judged,
            _CHOOSE: sum(one.num_ranked for one in data.choosing),
            _SERVED: asked,
            _LEARNED: asked if learns else 0,
            _GENERAL_SERVED: general_size,
            _GENERAL_LEARNED: general_size,
        },
        on_progress,
    )

    def ranked(parameters: Parameters, queries: Sequence[TrainingExample], part: str) -> list[ReportedQuery]:
        return parameters.all_reported(queries, agent, stop=stop, on_query=progress.ranked(part))

    def on_step(step: int, steps: int, loss: float) -> None:
        progress.tell(_LEARN, step / steps, f"step {step:,} of {steps:,}, loss {loss:.4f}")

    learned = None
    if data.examples:
        judgements = [
            Example(one.query, passage.title, passage.text, agent, usefulness)
            for one in data.examples
            for passage, usefulness in zip(one.passages, one.usefulness, strict=True)
        ]
        read = (
            candidate.parameters.model.encoder.max_seq_length
        )  # what is cut off when it serves teaches nothing
        with candidate.training() as model:
            learned = learn(
                candidate.tokenizer,
                model,
                judgements,
                replace(options, max_length=min(options.max_length, read or options.max_length)),
                on_step=on_step,
                checkpoint=checkpoint,
                stop=stop,
            )
        if not learned.complete:
            return Trained(candidate, learned)
    if data.choosing:
        reported = ranked(candidate.parameters, data.choosing, _CHOOSE)
        if stop():
            return Trained(candidate, learned)
        candidate = candidate.fused(agent, _chosen(reported, agent, candidate.parameters.fusion(agent)))
    before, after = served.fusion(agent), candidate.parameters.fusion(agent)
    held_out = data.held_out if learned is not None or after != before else ()
    now = with_gains(ranked(served, held_out, _SERVED), before, judged_alone=after == before)
    then = now
    if learned is not None:
        reported = ranked(candidate.parameters, held_out, _LEARNED)
        # What serves decides what a passage counts, for both.
        then = [replace(one, gains=known.gains) for one, known in zip(reported, now, strict=False)]
    if stop():
        return Trained(candidate, learned)
    found = compare(
        [one.value(before) for one in now], [one.value(after) for one in then], level=level, margin=margin
    )
    general = None
    if gate is not None and learned is not None:
        both = ((served, _GENERAL_SERVED), (candidate.parameters, _GENERAL_LEARNED))
        values = [gate.values(one, agent, stop=stop, on_query=progress.ranked(part)) for one, part in both]
        if stop():
            return Trained(candidate, learned)
        general = compare(*values, level=level, margin=margin)
    return Trained(candidate, learned, found, general)


class _Progress:
    """Says which share of a round is done; the unit is the time to score a passage.

    Args:
        parts: size of each part of the round, in order.
        on_progress: called with the share and one line.
    """

    def __init__(self, parts: Mapping[str, int], on_progress: ProgressCallback) -> None:
        self._parts = parts
        self._begins = dict(zip(parts, accumulate(parts.values(), initial=0), strict=False))
        self._total = max(1, sum(parts.values()))
        self._on_progress = on_progress

    def tell(self, part: str, share: float, line: str) -> None:
        """Report that a share of one part is done, [0, 1]."""
        self._on_progress((self._begins[part] + share * self._parts[part]) / self._total, line)

    def ranked(self, part: str) -> Callable[[int, int], None]:
        """Return what reports the queries that are ranked in one part."""
        return lambda count, of: self.tell(part, count / of, f"ranked {count:,} of {of:,} queries {part}")


def _chosen(reported: Sequence[ReportedQuery], agent: Agent, before: Fusion) -> Fusion:
    """Return the fusion whose lists are worth most to the agent, or the one before."""
    known = with_gains(reported, before, judged_alone=False)
    decide = [one for one in known if not math.isnan(one.value(before))]
    return fusing.choose(decide, Fusions(before), together=False).of(agent)
