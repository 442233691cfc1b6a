"""Open and closed loops: calls that come when they are due, and callers who wait for each answer."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ragcore.arrays import FloatArray
from ragmesh.bench.call import Call
from ragmesh.bench.material import Item
from ragmesh.bench.operations import Operation

_LOOKS_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Driven:
    """What one client saw of a step.

    Attributes:
        calls: those that ended, by when they were due.
        lags_ms: how much later than asked for the client's event loop woke up, every 20 ms.
        cpu_s: what the client computed. Seconds.
        elapsed_s: from the beginning to the last call's end. Seconds.
        interrupted: whether it was stopped before its time.
    """

    calls: Sequence[Call]
    lags_ms: Sequence[float]
    cpu_s: float
    elapsed_s: float
    interrupted: bool = False


@dataclass(slots=True)
class _Record:
    """What is filled while a step runs."""

    began: float
    calls: list[Call] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.began


async def open_loop(
    operation: Operation,
    items: Sequence[Item],
    arrivals: FloatArray,
    *,
    numbers: range,
    begin: float,
    stop: asyncio.Event,
) -> Driven:
    """Sends each call when it is due, however many are under way; waits for all of them at the end.

    Args:
        operation: makes a call.
        items: what calls are made with, in turn by their number.
        arrivals: when calls are due, rising, in seconds from ``begin``.
        numbers: a number for each arrival.
        begin: time of the monotonic clock, now or soon.
        stop: ends it: nothing more is sent, what is under way is given up.
    """

    async def send(record: _Record) -> None:
        async with asyncio.TaskGroup() as group:
            for due, number in zip(arrivals.tolist(), numbers, strict=True):
                if (wait := due - record.now()) > 0:
                    await asyncio.sleep(wait)
                group.create_task(_call(operation, items, number, due, record))

    return await _driven(send, begin, stop)


async def closed_loop(
    operation: Operation,
    items: Sequence[Item],
    *,
    callers: int,
    seconds: float,
    numbers: range,
    begin: float,
    stop: asyncio.Event,
) -> Driven:
    """Callers who each ask again as soon as they have an answer; the calls they have begun are ended.

    Args:
        operation: makes a call.
        items: what calls are made with, in turn by their number.
        callers: how many.
        seconds: how long they begin calls.
        numbers: of calls, in turn; as many as may be made at most.
        begin: time of the monotonic clock, now or soon.
        stop: ends it: what is under way is given up.
    """
    left = iter(numbers)

    async def send(record: _Record) -> None:
        async def ask() -> None:
            # No call is due before the answer to the one before: there is no queue outside the mesh.
            while (due := record.now()) < seconds and (number := next(left, None)) is not None:
                await _call(operation, items, number, due, record)

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(ask())

    return await _driven(send, begin, stop)


async def _call(
    operation: Operation, items: Sequence[Item], number: int, due: float, record: _Record
) -> None:
    sent = record.now()
    outcome = await operation(items[number % len(items)], number)
    ended = record.now()
    if not math.isnan(outcome.first_s):
        outcome = replace(outcome, first_s=outcome.first_s - record.began)
    record.calls.append(Call(due, sent, ended, outcome))


async def _driven(send: Callable[[_Record], Awaitable[None]], begin: float, stop: asyncio.Event) -> Driven:
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    record = _Record(begin)
    computed = time.process_time()
    lags: list[float] = []
    watch = asyncio.ensure_future(_watch(lags))
    work = asyncio.ensure_future(send(record))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not work.done()
    finally:
        for task in (work, stopped, watch):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        with contextlib.suppress(asyncio.CancelledError):
            await work
    calls = sorted(record.calls, key=lambda call: call.intended_s)
    return Driven(calls, lags, time.process_time() - computed, record.now(), interrupted)


async def _watch(lags: list[float]) -> None:
    """Notes how late the event loop is: a client that is busy measures itself."""
    while True:
        asked = time.monotonic()
        await asyncio.sleep(_LOOKS_S)
        lags.append(1e3 * (time.monotonic() - asked - _LOOKS_S))
