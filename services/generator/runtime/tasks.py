"""A request on its way through the engine."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from services.generator.domain import Answer, Cost, FinishReason, GenerationRequest
from services.generator.ports import Cancellation
from services.generator.runtime.networks import Prompt, Reading
from services.generator.runtime.outcomes import Listener
from services.generator.runtime.transcript import Transcript
from services.generator.runtime.writing import BeamWriting, SingleWriting

_ids = itertools.count()


@dataclass(eq=False, slots=True)
class Task:
    """A request, and what has become of it."""

    request: GenerationRequest
    cancel: Cancellation
    listener: Listener
    arrived: float = field(default_factory=time.monotonic)
    id: int = field(default_factory=lambda: next(_ids))
    prompt: Prompt | None = None
    transcript: Transcript | None = None
    reading: Reading | None = None
    writing: SingleWriting | BeamWriting | None = None
    taken_up: float = 0.0
    first: float = 0.0
    batch_rows: int = 0
    late_steps: int = 0
    """Steps that ended after nobody waited any more."""
    lost: bool = False
    """The listener failed: nobody can be told."""

    @property
    def width(self) -> int:
        """Rows in the batch."""
        return self.request.decoding.num_beams

    def answer(self) -> Answer:
        """The finished answer."""
        prompt, writing, reading, transcript = self.prompt, self.writing, self.reading, self.transcript
        assert prompt and writing and reading and transcript, "it is done"  # noqa: S101, PT018
        now = time.monotonic()
        return Answer(
            text=transcript.text,
            finish_reason=FinishReason.STOP if writing.stopped else FinishReason.LENGTH,
            prompt_tokens=prompt.tokens,
            completion_tokens=writing.written,
            log_probability=min(writing.log_probability, 0.0),
            dropped_passages=prompt.dropped_passages,
            cut_passages=prompt.cut_passages,
            dropped_turns=prompt.dropped_turns,
            cost=Cost(
                queue_s=self.taken_up - self.arrived,
                first_token_s=(self.first or now) - self.arrived,
                total_s=now - self.arrived,
                computed_tokens=reading.computed,
                reused_tokens=reading.reused,
                batch_rows=self.batch_rows,
            ),
        )


@dataclass(eq=False, slots=True)
class Judgement:
    """Passages to judge.

    ``result``: scores of True and of False per passage, log-probabilities; ``readings``: of passages that
    have no scores yet, by their places, once it was taken up.
    """

    prompts: list[Prompt]
    true: int
    false: int
    cancel: Cancellation
    result: Future[list[tuple[float, float]]] = field(default_factory=Future)
    readings: dict[int, Reading] = field(default_factory=dict)
    scores: dict[int, tuple[float, float]] = field(default_factory=dict)
