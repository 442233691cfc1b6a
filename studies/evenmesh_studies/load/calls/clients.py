"""Make the calls of a step from this process, or from several that share them."""

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol, Self

from evenmesh.addresses import Addresses
from evenmesh_studies.load.calls.call import Call
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.calls.loops import LoopResult, closed_loop, open_loop
from evenmesh_studies.load.calls.operations import Operations
from evenmesh_studies.load.step import Step

_LEAD_S: Final = 0.3
"""Seconds from the message to the processes until they begin."""
_MOST_CALLS: Final = 10_000_000


class Client(Protocol):
    """Makes the calls of steps."""

    processes: int
    """Number of processes."""

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> LoopResult:
        """Make a step's calls, numbered from ``first``, until ``stop``."""
        ...


class LocalClient:
    """Makes calls from this process. An async context manager that holds the connections.

    Args:
        addresses: where the services are.
    """

    processes = 1

    def __init__(self, addresses: Addresses) -> None:
        self._operations = Operations(addresses)

    async def __aenter__(self) -> Self:
        await self._operations.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._operations.__aexit__(*exc)

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> LoopResult:
        """Make a step's calls."""
        return await self.share(Share(step, items, first, 0, 1, time.monotonic()), stop)

    async def share(self, share: "Share", stop: asyncio.Event) -> LoopResult:
        """Make the calls of one process."""
        step, place, count = share.step, share.place, share.count
        operation = self._operations.make(step.settings)
        due = None if step.kind == "closed" else step.due()
        most = (step.most or _MOST_CALLS) if due is None else len(due)
        numbers = range(share.first + place, share.first + most, count)
        if due is not None:
            arrivals = due[place::count]
            return await open_loop(
                operation, share.items, arrivals, numbers=numbers, begin=share.begin, stop=stop
            )
        return await closed_loop(
            operation,
            share.items,
            callers=len(range(place, step.callers, count)),
            seconds=step.seconds,
            numbers=numbers,
            begin=share.begin,
            stop=stop,
        )


class ProcessClient:
    """Makes calls from several processes, so that one event loop is not the bottleneck.

    Each sends every n-th call when it is due: together they send what one process would. An async context
    manager that starts and ends the processes.

    Args:
        addresses: where the services are.
        processes: number, from 2.
    """

    def __init__(self, addresses: Addresses, processes: int) -> None:
        self.processes = processes
        self._addresses = addresses
        self._workers: list[tuple[Any, Connection]] = []

    async def __aenter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.processes):
            ours, theirs = context.Pipe()
            # A daemon ends with this process, also when a signal ends it.
            process = context.Process(target=_work, args=(self._addresses, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        for _, connection in self._workers:
            await _received(connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process, connection in self._workers:
            with contextlib.suppress(OSError):
                connection.send(None)
            await asyncio.to_thread(process.join, 5)
            if process.is_alive():
                process.terminate()
            connection.close()

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> LoopResult:
        """Make a step's calls; all processes begin at the same moment."""
        begin = time.monotonic() + _LEAD_S
        for place, (_, connection) in enumerate(self._workers):
            connection.send(Share(step, tuple(items), first, place, self.processes, begin))
        waits = [asyncio.ensure_future(_received(connection)) for _, connection in self._workers]
        stopped = asyncio.ensure_future(stop.wait())
        done = asyncio.ensure_future(_all(waits))
        await asyncio.wait((done, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            for _, connection in self._workers:
                connection.send(_STOP)
        stopped.cancel()
        return merged(await done)


def merged(parts: Sequence[LoopResult]) -> LoopResult:
    """Return the results of several clients of one step as one."""
    calls: list[Call] = sorted(
        (call for part in parts for call in part.calls), key=lambda call: call.intended_s
    )
    return LoopResult(
        calls,
        [lag for part in parts for lag in part.lags_ms],
        sum(part.cpu_s for part in parts),
        max(part.elapsed_s for part in parts),
        any(part.interrupted for part in parts),
    )


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part of a step: every ``count``-th call from the ``place``-th."""

    step: Step
    items: Sequence[Item]
    first: int
    place: int
    count: int
    begin: float


_STOP: Final = "stop"


async def _all(waits: Sequence[Awaitable[LoopResult]]) -> list[LoopResult]:
    return list(await asyncio.gather(*waits))


async def _received(connection: Connection) -> Any:
    """Return the next message of a process without blocking the event loop."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connection.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connection.fileno())
    return connection.recv()


def _work(addresses: Addresses, connection: Connection) -> None:
    """Run steps as they arrive, until None does. The entry point of each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process says when to stop
    with contextlib.suppress(EOFError, BrokenPipeError):
        asyncio.run(_serve(addresses, connection))


async def _serve(addresses: Addresses, connection: Connection) -> None:
    async with LocalClient(addresses) as client:
        connection.send("ready")
        while isinstance(share := await _received(connection), Share | str):
            if isinstance(share, str):
                continue  # a stop that came after the end
            stop = asyncio.Event()
            listening = asyncio.ensure_future(_listen(connection, stop))
            driven = await client.share(share, stop)
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            connection.send(driven)


async def _listen(connection: Connection, stop: asyncio.Event) -> None:
    with contextlib.suppress(EOFError):  # the parent has ended
        await _received(connection)
    stop.set()
