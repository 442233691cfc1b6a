"""Requests on their way through an engine, and who computes them."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from evenmesh.wire.errors import FailedPrecondition, MeshError
from evenmesh_generator.domain import Answer, Cost, FinishReason, GenerationRequest
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence
from evenmesh_generator.runtime.networks.protocol import Prefill, Prompt
from evenmesh_generator.runtime.prompts.transcript import Transcript

Outcome = Answer | MeshError | Cancelled
"""How a request ends."""

_ids = itertools.count()


class Listener(Protocol):
    """Receives one request's text and outcome on a thread of the engine; must return at once."""

    def on_delta(self, text: str) -> None:
        """Receive more text; never empty."""

    def on_end(self, outcome: Outcome) -> None:
        """Receive the last call: the answer, whose text is all deltas joined, or why there is none."""


@dataclass(eq=False, slots=True)
class Task:
    """A request to answer, and its state."""

    request: GenerationRequest
    cancel: Cancellation
    listener: Listener
    arrived: float = field(default_factory=time.monotonic)
    id: int = field(default_factory=lambda: next(_ids))
    prompt: Prompt | None = None
    transcript: Transcript | None = None
    prefill: Prefill | None = None
    sequence: SingleSequence | BeamSequences | None = None
    part: int = 0
    """Which part of the batch it joins."""
    started: float = 0.0
    first: float = 0.0
    batch_rows: int = 0
    late_steps: int = 0
    """Steps that ended after the request was cancelled."""
    lost: bool = False
    """Whether the listener has failed: nothing is sent to it any more."""

    @property
    def tenant(self) -> str:
        """Return the tenant of the request."""
        return self.request.tenant

    @property
    def width(self) -> int:
        """Return the rows it takes in the batch."""
        return self.request.decoding.num_beams

    def answer(self) -> Answer:
        """Return the finished answer.

        Raises:
            FailedPrecondition: the model gave it scores that are no numbers.
        """
        prompt, sequence, prefill, transcript = self.prompt, self.sequence, self.prefill, self.transcript
        assert prompt and sequence and prefill and transcript, "it is done"  # noqa: S101, PT018
        if sequence.broken:
            raise no_numbers()
        now = time.monotonic()
        return Answer(
            text=transcript.text,
            finish_reason=FinishReason.STOP if sequence.stopped else FinishReason.LENGTH,
            prompt_tokens=prompt.tokens,
            completion_tokens=sequence.written,
            log_probability=min(sequence.log_probability, 0.0),
            dropped_passages=prompt.dropped_passages,
            cut_passages=prompt.cut_passages,
            dropped_turns=prompt.dropped_turns,
            cut_question=prompt.cut_question,
            confidence=transcript.confidence(sequence.log_probabilities),
            span=transcript.span,
            cost=Cost(
                queue_s=self.started - self.arrived,
                first_token_s=(self.first or now) - self.arrived,
                total_s=now - self.arrived,
                computed_tokens=prefill.computed,
                reused_tokens=prefill.reused,
                batch_rows=self.batch_rows,
            ),
        )


@dataclass(eq=False, slots=True)
class Judgement:
    """Passages to judge.

    ``result``: log-probabilities of True and of False per passage; ``prefills``: of passages without scores
    yet, by their places, once computing has begun.
    """

    prompts: list[Prompt]
    true: int
    false: int
    cancel: Cancellation
    tenant: str = ""
    result: Future[list[tuple[float, float]]] = field(default_factory=Future)
    prefills: dict[int, Prefill] = field(default_factory=dict)
    scores: dict[int, tuple[float, float]] = field(default_factory=dict)


def no_numbers() -> FailedPrecondition:
    """Return the error of a model that overflows: its scores are no numbers, and choose no token."""
    return FailedPrecondition(
        "NO_NUMBERS", "the model's scores are no numbers: its number type is too narrow, set another dtype"
    )
