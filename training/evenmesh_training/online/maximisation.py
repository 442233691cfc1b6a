"""The computation of one round: train a candidate on examples, and compare it on those held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenmesh_reranker.domain import Agent
from evenmesh_training.ium.gate import Gate
from evenmesh_training.ium.learning import Example, Learned, Options, StepCallback, learn
from evenmesh_training.online.candidates import Candidate, Parameters
from evenmesh_training.online.comparison import MARGIN, Comparison, compare
from evenmesh_training.online.settings import OnlineSettings
from evenmesh_training.online.training_examples import TrainingExample

ADAPTER_RATE: Final = 1e-3
"""Learning rate of an adapter, half of which starts at zero."""
_FULL_RATE: Final = 1e-5
_MICRO_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training a candidate.

    Attributes:
        learned: its training.
        comparison: the candidate against what serves; None if training was stopped before its end.
        general: the same on the questions of the gate; None without a gate.
    """

    learned: Learned
    comparison: Comparison | None
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
    examples: Sequence[TrainingExample],
    held_out: Sequence[TrainingExample],
    options: Options,
    *,
    level: float,
    margin: float = MARGIN,
    gate: Gate | None = None,
    on_step: StepCallback | None = None,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train a candidate, and compare it with what serves.

    Args:
        candidate: changed.
        served: what serves the agent now.
        agent: the agent.
        examples: what to learn from.
        held_out: what to compare on.
        options: how to learn.
        level: of the tests, (0, 1).
        margin: loss of nDCG that is accepted, (0, 1).
        gate: questions of no agent, on which it must not be worse either; None: none.
        on_step: called after each step.
        checkpoint: file from which a stopped training resumes.
        stop: called after each step; True ends the training early.

    Raises:
        InvalidInput: there is nothing to learn from.
        FloatingPointError: the training diverges.
        OSError: the checkpoint cannot be written.
    """
    judgements = [
        Example(one.query, passage.title, passage.text, agent, usefulness)
        for one in examples
        for passage, usefulness in zip(one.passages, one.usefulness, strict=True)
    ]
    with candidate.training() as model:
        learned = learn(
            candidate.tokenizer,
            model,
            judgements,
            options,
            on_step=on_step,
            checkpoint=checkpoint,
            stop=stop,
        )
    if not learned.complete:
        return Trained(learned, None)
    before, after = served.values(held_out, agent), candidate.parameters.values(held_out, agent)
    general = None
    if gate is not None:
        known, now = gate.values(served, agent), gate.values(candidate.parameters, agent)
        general = compare(known, now, level=level, margin=margin)
    found = compare(before, after, level=level, margin=margin)
    return Trained(learned, found, general)
