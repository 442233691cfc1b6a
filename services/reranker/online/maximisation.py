"""The compute of one round: candidates are trained on lessons and compared on those that were held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.reranker.domain import Agent
from services.reranker.online.candidates import Candidate, Parameters
from services.reranker.online.comparison import Comparison, compare
from services.reranker.online.lessons import Lesson
from services.reranker.online.settings import OnlineSettings
from services.reranker.training.learning import Example, Learned, Options, learn

ADAPTER_RATE: Final = 1e-3
"""Learning rate of an adapter, half of which begins at zero."""
_FULL_RATE: Final = 1e-5
_MICRO_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class Trained:
    """What became of a candidate.

    Attributes:
        learned: its training.
        comparison: it against what serves; None if training was stopped before its end.
    """

    learned: Learned
    comparison: Comparison | None


def options_of(settings: OnlineSettings) -> Options:
    """How is learned, as settings say. Ids are never withheld online (section 5.1)."""
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
    lessons: Sequence[Lesson],
    held: Sequence[Lesson],
    options: Options,
    *,
    level: float,
    watcher: Callable[[int, int, float], None] | None = None,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Trains a candidate and tests whether it is worse than what serves.

    Args:
        candidate: changed.
        served: what serves the agent now.
        agent: whom for.
        lessons: what is learned from.
        held: what is only judged by.
        options: how is learned.
        level: of the test, (0, 1).
        watcher: told of each step.
        checkpoint: file from which a training that was ended goes on.
        stop: asked after each step whether to end early.

    Raises:
        InvalidInput: there is nothing to learn from.
        FloatingPointError: the training diverges.
        OSError: the checkpoint cannot be written.
    """
    examples = [
        Example(one.query, passage.title, passage.text, agent, usefulness)
        for one in lessons
        for passage, usefulness in zip(one.passages, one.usefulness, strict=True)
    ]
    with candidate.training() as model:
        learned = learn(
            candidate.tokenizer,
            model,
            examples,
            options,
            watcher=watcher,
            checkpoint=checkpoint,
            stop=stop,
        )
    if not learned.complete:
        return Trained(learned, None)
    comparison = compare(
        served.values(held, agent),
        candidate.parameters.values(held, agent),
        level=level,
        seed=options.seed,
    )
    return Trained(learned, comparison)
