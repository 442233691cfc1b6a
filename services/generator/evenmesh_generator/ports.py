"""The engine's port to language models, whatever runs them."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from evenmesh.wire.deadline import NEVER, Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_generator.domain import Answer, GenerationRequest, ModelDescription, RelevanceRequest
from evenmesh_generator.runtime.statistics import EngineStatistics


class Cancelled(Exception):  # noqa: N818 - not an error
    """Raised by a model between two tokens when no caller waits for the answer any more."""


class Cancellation:
    """Tells a model that no caller waits any more: the caller has gone, or its deadline has passed.

    Set from any thread, read by the model between tokens.
    """

    def __init__(self, deadline: Deadline = NEVER) -> None:
        self._deadline = deadline
        self._gone = threading.Event()
        self._callbacks: set[Callable[[], object]] = set()
        self._lock = threading.Lock()

    @property
    def deadline(self) -> Deadline:
        """Return the deadline of the caller."""
        return self._deadline

    def cancel(self) -> None:
        """Record that the caller has gone."""
        with self._lock:
            self._gone.set()
            callbacks, self._callbacks = self._callbacks, set()
        for callback in callbacks:
            callback()

    @contextmanager
    def notifying(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call ``callback`` once, from any thread, if the caller goes before the block ends.

        For work that runs elsewhere and cannot check between tokens. A deadline that passes makes no call.
        """
        with self._lock:
            gone = self._gone.is_set()
            if not gone:
                self._callbacks.add(callback)
        if gone:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.discard(callback)

    @property
    def cancelled(self) -> bool:
        """Return whether to stop."""
        return self._gone.is_set() or self._deadline.expired

    def check(self) -> None:
        """Raise if no caller waits for the answer any more.

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
        """Return what the model is and can do; the same for as long as it is loaded."""

    @property
    def up(self) -> bool:
        """Return whether it can write answers now."""

    def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Return the text deltas, none of them empty, then the answer; their concatenation is the answer's
        text.

        With several beams the text is known only at the end and is one delta. Closing the generator early
        stops the model within one token.

        Raises:
            MeshError: the question does not fit the model, or the model is away.
        """

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        """Return the answer alone; errors are those of :meth:`generate_stream`."""

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """Return P(True) per passage, each in [0, 1], under RankRAG's context-ranking prompt (Yu et al.,
        2024, appendix D.1).

        Raises:
            FailedPrecondition: the model cannot judge relevance.
            MeshError: the question does not fit the model, or the model is away.
        """


class HostedModel(LanguageModel, Protocol):
    """A language model that a host runs."""

    def statistics(self) -> EngineStatistics:
        """Return what the model has done so far."""
