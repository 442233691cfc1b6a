"""Who makes the calls of a step: this process, or several that share them."""

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ragmesh.addresses import Addresses
from ragmesh.bench.call import Call
from ragmesh.bench.load import Driven, closed_loop, open_loop
from ragmesh.bench.material import Item
from ragmesh.bench.operations import Operations
from ragmesh.bench.step import Step

_LEAD_S: Final = 0.3
"""Between telling processes to begin and the beginning."""
_MOST_CALLS: Final = 10_000_000


class Client(Protocol):
    """Makes the calls of steps."""

    processes: int
    """How many processes it is."""

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> Driven:
        """Makes a step's calls, which are numbered from ``first``, until ``stop``."""
        ...


class LocalClient:
    """This process makes the calls; an async context manager that holds its connections.

    Args:
        addresses: where the services are.
    """

    processes = 1

    def __init__(self, addresses: Addresses) -> None:
        self._operations = Operations(addresses)

    async def __aenter__(self) -> Self:
        await self._operations.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._operations.__aexit__(exc_type, exc, traceback)

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> Driven:
        """Makes a step's calls."""
        return await self.share(step, items, first, stop, place=0, count=1, begin=time.monotonic())

    async def share(
        self,
        step: Step,
        items: Sequence[Item],
        first: int,
        stop: asyncio.Event,
        *,
        place: int,
        count: int,
        begin: float,
    ) -> Driven:
        """Makes every ``count``-th call of a step from the ``place``-th."""
        operation = self._operations.make(step.settings)
        if step.kind == "closed":
            callers = len(range(place, step.callers, count))
            most = step.most or _MOST_CALLS
            return await closed_loop(
                operation,
                items,
                callers=callers,
                seconds=step.seconds,
                numbers=range(first + place, first + most, count),
                begin=begin,
                stop=stop,
            )
        due = step.due()
        return await open_loop(
            operation,
            items,
            due[place::count],
            numbers=range(first + place, first + len(due), count),
            begin=begin,
            stop=stop,
        )


class ProcessClient:
    """Several processes make the calls, so that one event loop is not what is measured.

    Each sends every n-th call at its own time: together they send exactly what one would. A context manager
    that starts and ends them.

    Args:
        addresses: where the services are.
        processes: how many, from 2.
    """

    def __init__(self, addresses: Addresses, processes: int) -> None:
        self.processes = processes
        self._addresses = addresses
        self._workers: list[tuple[Any, Connection]] = []

    async def __aenter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.processes):
            ours, theirs = context.Pipe()
            # As a daemon it ends with this process, even one that is killed by a signal it can catch.
            process = context.Process(target=_work, args=(self._addresses, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        for _, connection in self._workers:
            await _received(connection)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process, connection in self._workers:
            with contextlib.suppress(OSError):
                connection.send(None)
            await asyncio.to_thread(process.join, 5)
            if process.is_alive():
                process.terminate()
            connection.close()

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> Driven:
        """Makes a step's calls, all processes beginning at the same moment."""
        begin = time.monotonic() + _LEAD_S
        for place, (_, connection) in enumerate(self._workers):
            connection.send(_Task(step, tuple(items), first, place, self.processes, begin))
        waits = [asyncio.ensure_future(_received(connection)) for _, connection in self._workers]
        stopped = asyncio.ensure_future(stop.wait())
        done = asyncio.ensure_future(_all(waits))
        await asyncio.wait((done, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            for _, connection in self._workers:
                connection.send(_STOP)
        stopped.cancel()
        return merged(await done)


def merged(parts: Sequence[Driven]) -> Driven:
    """What several clients saw of one step, together."""
    calls: list[Call] = sorted(
        (call for part in parts for call in part.calls), key=lambda call: call.intended_s
    )
    return Driven(
        calls,
        [lag for part in parts for lag in part.lags_ms],
        sum(part.cpu_s for part in parts),
        max(part.elapsed_s for part in parts),
        any(part.interrupted for part in parts),
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """One process's part of a step."""

    step: Step
    items: tuple[Item, ...]
    first: int
    place: int
    count: int
    begin: float


_STOP: Final = "stop"


async def _all(waits: Sequence[Awaitable[Driven]]) -> list[Driven]:
    return list(await asyncio.gather(*waits))


async def _received(connection: Connection) -> Any:
    """What a process sends next; it is waited for without holding up the event loop."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connection.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connection.fileno())
    return connection.recv()


def _work(addresses: Addresses, connection: Connection) -> None:
    """What each process runs: steps as they are told, until there is None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process says when to stop
    with contextlib.suppress(EOFError, BrokenPipeError):
        asyncio.run(_serve(addresses, connection))


async def _serve(addresses: Addresses, connection: Connection) -> None:
    async with LocalClient(addresses) as client:
        connection.send("ready")
        while isinstance(task := await _received(connection), _Task | str):
            if isinstance(task, str):
                continue  # a stop that came after the end
            stop = asyncio.Event()
            listening = asyncio.ensure_future(_listen(connection, stop))
            driven = await client.share(
                task.step,
                task.items,
                task.first,
                stop,
                place=task.place,
                count=task.count,
                begin=task.begin,
            )
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            connection.send(driven)


async def _listen(connection: Connection, stop: asyncio.Event) -> None:
    with contextlib.suppress(EOFError):  # nobody is left who would want the rest
        await _received(connection)
    stop.set()
