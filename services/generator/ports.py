"""What the engine needs of a language model, whatever runs it."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from meshkit.deadline import NEVER, Deadline
from meshkit.errors import DeadlineExceeded, MeshError
from services.generator.domain import Answer, GenerationRequest, ModelDescription, RelevanceRequest


class Cancelled(Exception):  # noqa: N818 - not an error
    """Nobody waits for the answer any more; a model raises it between two tokens."""


class Cancellation:
    """Tells a model that nobody waits any more: the caller has gone, or its deadline has passed.

    Set from any thread, read by the model between tokens.
    """

    def __init__(self, deadline: Deadline = NEVER) -> None:
        self._deadline = deadline
        self._gone = threading.Event()
        self._to_tell: set[Callable[[], object]] = set()
        self._lock = threading.Lock()

    @property
    def deadline(self) -> Deadline:
        """Until when somebody waits."""
        return self._deadline

    def cancel(self) -> None:
        """The caller has gone."""
        with self._lock:
            self._gone.set()
            to_tell, self._to_tell = self._to_tell, set()
        for callback in to_tell:
            callback()

    @contextmanager
    def telling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Calls ``callback`` once, from whatever thread, if the caller goes before the block ends.

        For work that happens elsewhere and cannot be asked between tokens. A passing deadline is not told.
        """
        with self._lock:
            gone = self._gone.is_set()
            if not gone:
                self._to_tell.add(callback)
        if gone:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._to_tell.discard(callback)

    @property
    def cancelled(self) -> bool:
        """Whether to stop."""
        return self._gone.is_set() or self._deadline.expired

    def check(self) -> None:
        """Returns while somebody waits.

        Raises:
            Cancelled: the caller has gone.
            DeadlineExceeded: the deadline has passed.
        """
        if self._gone.is_set():
            raise Cancelled
        if self._deadline.expired:
            raise DeadlineExceeded("the deadline passed while the model was writing")


class LanguageModel(Protocol):
    """A language model. Used from one event loop, by many callers at once.

    Requests arrive checked against :meth:`describe`: the augmentation is one of the model's and never
    PARAMETRIC_KNOWLEDGE or COMPRESSION (the engine makes two requests of them), and the template suits it.
    """

    def describe(self) -> ModelDescription:
        """What the model is and can do; the same for as long as it is loaded."""
        ...

    @property
    def up(self) -> bool:
        """Whether it can write answers now."""
        ...

    def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Text deltas, none of them empty, then the answer; their concatenation is the answer's text.

        With several beams the text is known only at the end and is one delta. Closing the generator early
        stops the model within one token.

        Raises:
            MeshError: the question does not fit the model, or the model is away.
        """
        ...

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]:
        """One answer or one error per request, in order."""
        ...

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """P(True) per passage, each in [0, 1], under RankRAG's context-ranking prompt (appendix D.1).

        Raises:
            FailedPrecondition: the model cannot judge relevance.
            MeshError: the question does not fit the model, or the model is away.
        """
        ...
