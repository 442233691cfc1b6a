"""Models computed in this process: threads behind the port, tokens over to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from services.generator.domain import Answer, GenerationRequest, ModelDescription, Normalization, Passage
from services.generator.ports import Cancellation

P = ParamSpec("P")
T = TypeVar("T")

Emit = Callable[[str], None]


class ComputedModel(Protocol):
    """A model that computes where it is called; called from several threads at once.

    The methods mean what those of :class:`~services.generator.ports.LanguageModel` do.
    """

    def describe(self) -> ModelDescription: ...

    def stream(self, request: GenerationRequest, cancel: Cancellation, emit: Emit) -> Answer:
        """Writes one answer and hands each piece of text to ``emit`` as soon as it is there."""
        ...

    def batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]: ...

    def relevance(
        self, question: str, passages: Sequence[Passage], normalization: Normalization, cancel: Cancellation
    ) -> list[float]: ...


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


class InProcessModel:
    """A :class:`~services.generator.ports.LanguageModel` that computes in threads of this process.

    Args:
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(self, model: ComputedModel, pool: ComputePool, *, interval_s: float) -> None:
        self._model = model
        self._pool = pool
        self._interval_s = interval_s

    def describe(self) -> ModelDescription:
        """What the model is and can do."""
        return self._model.describe()

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Text deltas, then the answer."""
        queue = DeltaQueue(asyncio.get_running_loop(), self._interval_s)
        work = asyncio.ensure_future(self._pool.run(self._model.stream, request, cancel, queue.put))
        work.add_done_callback(lambda _: queue.close())
        wanted = True
        try:
            async for text in queue.read():
                yield text
            answer = await work
            wanted = False
            yield answer
        finally:
            if wanted:
                cancel.cancel()
                work.cancel()

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]:
        """One answer or one error per request, in order."""
        return await self._until_left(cancel, self._model.batch, requests, cancel)

    async def score_relevance(
        self, question: str, passages: Sequence[Passage], normalization: Normalization, cancel: Cancellation
    ) -> list[float]:
        """P(True) per passage."""
        return await self._until_left(
            cancel, self._model.relevance, question, passages, normalization, cancel
        )

    async def _until_left(
        self, cancel: Cancellation, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs ``fn`` in a thread; when the caller leaves, tells it so."""
        try:
            return await self._pool.run(fn, *args, **kwargs)
        except asyncio.CancelledError:
            cancel.cancel()
            raise
