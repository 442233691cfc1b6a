"""What language models of Triton servers share: how requests go there."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial

from evenmesh_generator.backends.deltas import streamed
from evenmesh_generator.backends.tasks import ended, in_task
from evenmesh_generator.backends.triton.endpoint import ModelReplicas, Replica
from evenmesh_generator.backends.triton.health_monitor import HealthMonitor, HealthSettings
from evenmesh_generator.backends.triton.servers import TritonServer
from evenmesh_generator.domain import Answer, GenerationRequest
from evenmesh_generator.ports import Cancellation


class TritonWriter(abc.ABC):
    """Writes answers by a model of Triton servers; a subclass sends one request in :meth:`_write`.

    Args:
        name: Triton's name of the model.
        health: how it is monitored at each server.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(self, name: str, health: HealthSettings, interval_s: float) -> None:
        self._writer = ModelReplicas(name)
        self._health = health
        self._interval_s = interval_s
        self._monitoring: dict[TritonServer, list[asyncio.Task[None]]] = {}

    async def open(self, server: TritonServer, on_change: Callable[[], object]) -> None:
        """Ask the model at its first server what it is, and start to monitor it there.

        Args:
            on_change: called when :attr:`up` may have changed.

        Raises:
            MeshError: the model does not answer.
        """
        self._writer.on_change = on_change
        await self._meet(server)
        self._monitor(server, up=True)

    def join(self, server: TritonServer) -> None:
        """Start to monitor the model at one more server, which gets requests once it answers there."""
        self._monitor(server, up=False)

    async def leave(self, server: TritonServer) -> None:
        """Stop monitoring the model at a server, and forget it there."""
        for task in self._monitoring.pop(server, ()):
            await ended(task)
        for replicas, _ in self._parts():
            replicas.remove(server)

    async def close(self) -> None:
        """Stop monitoring the model."""
        for tasks in self._monitoring.values():
            for task in tasks:
                await ended(task)

    @property
    def up(self) -> bool:
        """Return whether it can write answers now."""
        return self._writer.up

    def up_at(self, server: TritonServer) -> bool:
        """Return whether it can write answers at this server."""
        found = self._writer.at(server)
        return found is not None and found.endpoint.up

    @property
    def in_flight(self) -> int:
        """Return the requests that run or wait for a place."""
        return self._writer.in_flight

    def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Return the text deltas, then the answer."""
        return streamed(lambda on_delta: self._run(request, on_delta, cancel), self._interval_s)

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        """Return the answer."""
        answer = await in_task(self._run(request, lambda _: None, cancel))
        cancel.check()
        return answer

    def _monitor(self, server: TritonServer, *, up: bool) -> None:
        tasks = self._monitoring[server] = []
        for replicas, probe in self._parts():
            replica = replicas.add(server, up=up)
            monitor = HealthMonitor(server.client, replica.endpoint, partial(probe, replica), self._health)
            replica.check_now = monitor.check_now
            tasks.append(asyncio.create_task(monitor.run()))

    async def _run(
        self, request: GenerationRequest, on_delta: Callable[[str], object], cancel: Cancellation
    ) -> Answer:
        read = False

        def passed_on(text: str) -> None:
            nonlocal read
            read = True
            on_delta(text)

        def sent(replica: Replica, timeout_s: float) -> Awaitable[Answer]:
            return self._write(replica, request, passed_on, timeout_s)

        return await self._writer.run(sent, cancel, lambda: not read)

    def _parts(self) -> Sequence[tuple[ModelReplicas, Callable[[Replica, float], Awaitable[None]]]]:
        """Return what is monitored at each server, with its probes: the model that writes."""
        return ((self._writer, self._probe),)

    @abc.abstractmethod
    async def _meet(self, server: TritonServer) -> None:
        """Ask the model what it is, before anything else is sent to it.

        Raises:
            MeshError: it does not answer.
        """

    @abc.abstractmethod
    async def _probe(self, replica: Replica, timeout_s: float) -> None:
        """Have the model at a server write a token.

        Raises:
            MeshError: what the model or the server says.
        """

    @abc.abstractmethod
    async def _write(
        self,
        replica: Replica,
        request: GenerationRequest,
        on_delta: Callable[[str], object],
        timeout_s: float,
    ) -> Answer:
        """Send one request to a server, which may take ``timeout_s``, and read up to its answer.

        Raises:
            MeshError: what the model or the server says.
        """
