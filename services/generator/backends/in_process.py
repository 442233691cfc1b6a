"""Models computed in this process: the engine's threads on one side, the event loop on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from services.generator.backends.deltas import DeltaQueue
from services.generator.domain import Answer, GenerationRequest, ModelDescription, RelevanceRequest
from services.generator.ports import Cancellation, Cancelled
from services.generator.runtime.engine import LanguageEngine, Outcome


class _Waiter:
    """Hears of one request and tells the event loop."""

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
    """A :class:`~services.generator.ports.LanguageModel` whose engine runs in this process.

    Args:
        pool: where judgements wait for the engine.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(self, engine: LanguageEngine, pool: ComputePool, *, interval_s: float) -> None:
        self._engine = engine
        self._pool = pool
        self._interval_s = interval_s

    def describe(self) -> ModelDescription:
        """What the model is and can do."""
        return self._engine.describe()

    @property
    def up(self) -> bool:
        """Always: the model lives and dies with this process."""
        return True

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Text deltas, then the answer."""
        loop = asyncio.get_running_loop()
        queue = DeltaQueue(loop, self._interval_s)
        waiter = _Waiter(loop, queue.put)
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

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]:
        """One answer or one error per request, in order."""
        loop = asyncio.get_running_loop()
        waiters = [_Waiter(loop) for _ in requests]
        try:
            for request, waiter in zip(requests, waiters, strict=True):
                self._engine.submit(request, cancel, waiter)
            outcomes = await asyncio.gather(*(waiter.outcome for waiter in waiters))
        except asyncio.CancelledError:
            cancel.cancel()
            raise
        for outcome in outcomes:
            if isinstance(outcome, Cancelled):
                raise outcome
        cancel.check()
        return [outcome for outcome in outcomes if not isinstance(outcome, Cancelled)]

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """P(True) per passage."""
        try:
            return await self._pool.run(self._engine.judge, request, cancel)
        except asyncio.CancelledError:
            cancel.cancel()
            raise
