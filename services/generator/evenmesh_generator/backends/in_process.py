"""Run models in this process: the engine on its threads, callers on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from evenmesh_generator.backends.deltas import DeltaQueue
from evenmesh_generator.domain import Answer, GenerationRequest, ModelDescription, RelevanceRequest
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.runtime.tasks import Outcome


class _OutcomeListener:
    """Passes one request's text and outcome to the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_delta: Callable[[str], None] | None = None
    ) -> None:
        self._loop = loop
        self._on_delta = on_delta
        self.outcome: asyncio.Future[Outcome] = loop.create_future()

    def on_delta(self, text: str) -> None:
        if self._on_delta is not None:
            self._on_delta(text)

    def on_end(self, outcome: Outcome) -> None:
        self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():  # the caller has gone
            self.outcome.set_result(outcome)


class InProcessModel:
    """A :class:`~evenmesh_generator.ports.LanguageModel` whose engine runs in this process.

    Args:
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(self, engine: LanguageEngine, *, interval_s: float) -> None:
        self._engine = engine
        self._interval_s = interval_s

    def describe(self) -> ModelDescription:
        """Return what the model is and can do."""
        return self._engine.describe()

    def statistics(self) -> EngineStatistics:
        """Return what the engine has done so far."""
        return self._engine.statistics()

    @property
    def up(self) -> bool:
        """Return True: the model lives as long as this process."""
        return True

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Return the text deltas, then the answer."""
        loop = asyncio.get_running_loop()
        queue = DeltaQueue(loop, self._interval_s)
        waiter = _OutcomeListener(loop, queue.put)
        waiter.outcome.add_done_callback(lambda _: queue.close())
        self._engine.submit(request, cancel, waiter)
        wanted = True
        try:
            async for text in queue.read():
                yield text
            outcome = await waiter.outcome
            wanted = False
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome
        finally:
            if wanted:
                cancel.cancel()

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        """Return the answer."""
        waiter = _OutcomeListener(asyncio.get_running_loop())
        self._engine.submit(request, cancel, waiter)
        try:
            outcome = await waiter.outcome
        except asyncio.CancelledError:
            cancel.cancel()
            raise
        if not isinstance(outcome, Cancelled):
            cancel.check()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """Return P(True) per passage."""
        try:
            return await asyncio.wrap_future(self._engine.judge(request, cancel))
        except asyncio.CancelledError:
            cancel.cancel()
            raise
