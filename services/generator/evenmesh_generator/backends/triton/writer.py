"""What language models of a Triton server share: how streams and batches of requests go there."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from evenmesh.wire.errors import MeshError
from evenmesh_generator.backends.deltas import DeltaQueue
from evenmesh_generator.backends.tasks import all_of, ended
from evenmesh_generator.backends.triton.endpoint import ModelEndpoint
from evenmesh_generator.backends.triton.health_monitor import HealthMonitor
from evenmesh_generator.domain import Answer, GenerationRequest
from evenmesh_generator.ports import Cancellation


class TritonWriter(abc.ABC):
    """Writes answers by a model of a Triton server; a subclass sends one request in :meth:`_write`.

    Args:
        endpoint: the model.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(self, endpoint: ModelEndpoint, interval_s: float) -> None:
        self._writer = endpoint
        self._interval_s = interval_s
        self._monitoring: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        """Stop monitoring the model."""
        for task in self._monitoring:
            await ended(task)

    @property
    def up(self) -> bool:
        """Return whether it can write answers now."""
        return self._writer.up

    @property
    def in_flight(self) -> int:
        """Return the requests that run or wait for a place."""
        return self._writer.in_flight

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Return the text deltas, then the answer."""
        queue = DeltaQueue(asyncio.get_running_loop(), self._interval_s)
        writing = asyncio.create_task(self._writer.run(partial(self._write, request, queue.put), cancel))
        writing.add_done_callback(lambda _: queue.close())
        try:
            async for text in queue.read():
                yield text
            yield await writing
        finally:
            await ended(writing)

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]:
        """Return one answer or one error per request, in order; send all at once, longest first."""
        cancel.check()
        longest_first = sorted(range(len(requests)), key=lambda at: -_length(requests[at]))
        tasks = {at: asyncio.create_task(self._answer(requests[at], cancel)) for at in longest_first}
        outcomes = await all_of([tasks[at] for at in range(len(requests))])
        cancel.check()
        return outcomes

    def _monitor(self, monitors: Sequence[HealthMonitor], on_change: Callable[[], object]) -> None:
        """Start to monitor the model; ``on_change`` is called when :attr:`up` has changed."""
        self._writer.on_change = on_change
        self._monitoring = [asyncio.create_task(monitor.run()) for monitor in monitors]

    @abc.abstractmethod
    async def _write(
        self, request: GenerationRequest, on_delta: Callable[[str], object], timeout_s: float
    ) -> Answer:
        """Send one request, which may take ``timeout_s``, and read up to its answer.

        Raises:
            MeshError: what the model or the server says.
        """

    async def _answer(self, request: GenerationRequest, cancel: Cancellation) -> Answer | MeshError:
        def nobody_reads(text: str) -> None:
            """Ignore deltas: the whole text comes with the answer."""

        try:
            return await self._writer.run(partial(self._write, request, nobody_reads), cancel)
        except MeshError as error:
            return error


def _length(request: GenerationRequest) -> int:
    """Estimate how long a request takes: characters to read and to write."""
    read = sum(len(one.title) + len(one.text) for one in request.passages)
    return len(request.question) + read + 4 * request.decoding.max_new_tokens * request.decoding.num_beams
