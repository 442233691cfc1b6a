"""Models computed in this process: the engine's threads on one side, the event loop on the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from services.generator.domain import Answer, GenerationRequest, ModelDescription, RelevanceRequest
from services.generator.ports import Cancellation, Cancelled
from services.generator.runtime.engine import LanguageEngine, Outcome


class DeltaQueue:
    """Text from a thread to the event loop; pieces that wait together leave together.

    Args:
        loop: the reader's loop.
        interval_s: least time between two pieces, except before the first and the last. Seconds, [0, inf).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._pieces: deque[str] = deque()
        self._arrived = asyncio.Event()
        self._signalled = False
        self._closed = asyncio.Event()

    def put(self, text: str) -> None:
        """Adds text; from any thread."""
        self._pieces.append(text)
        # One wake-up per reading, however many pieces: waking the loop costs more than a small piece.
        if not self._signalled:
            self._signalled = True
            self._loop.call_soon_threadsafe(self._arrived.set)

    def close(self) -> None:
        """No more text comes; from the loop."""
        self._closed.set()
        self._arrived.set()

    async def read(self) -> AsyncGenerator[str, None]:
        """Text that has come since, until closed."""
        while not (self._closed.is_set() and not self._pieces):
            await self._arrived.wait()
            self._arrived.clear()
            self._signalled = False  # before taking: what comes from now on wakes the loop again
            text = "".join(self._pieces.popleft() for _ in range(len(self._pieces)))
            if text:
                yield text
            if self._interval_s and not self._closed.is_set():
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self._closed.wait()
                except TimeoutError:
                    continue


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
