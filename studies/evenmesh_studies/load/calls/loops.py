"""Open and closed loops: calls at given times, and callers who wait for each answer."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from evenmesh_core.arrays import FloatArray
from evenmesh_studies.load.calls.call import Call
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.calls.operations import Operation

_SAMPLE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What one client measured of a step.

    Attributes:
        calls: those that ended, by due time.
        lags_ms: delays of the client's event loop, sampled every 20 ms.
        cpu_s: processor time of the client in seconds.
        elapsed_s: seconds from the beginning to the last call's end.
        interrupted: whether it was stopped before its time.
    """

    calls: Sequence[Call]
    lags_ms: Sequence[float]
    cpu_s: float
    elapsed_s: float
    interrupted: bool = False


@dataclass(slots=True)
class _Record:
    """Collects calls while a step runs."""

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
) -> LoopResult:
    """Send each call when it is due, however many are under way; wait for all at the end.

    Args:
        operation: makes a call.
        items: questions, in turn by the calls' numbers.
        arrivals: seconds from ``begin`` at which calls are due, ascending.
        numbers: one for each arrival.
        begin: time of the monotonic clock, now or soon.
        stop: ends the loop and cancels calls under way.
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
) -> LoopResult:
    """Let callers ask again as soon as they have an answer; wait for the calls they began.

    Args:
        operation: makes a call.
        items: questions, in turn by the calls' numbers.
        callers: number of callers.
        seconds: duration in which they begin calls.
        numbers: of calls, in turn; their count is the most calls made.
        begin: time of the monotonic clock, now or soon.
        stop: ends the loop and cancels calls under way.
    """
    left = iter(numbers)

    async def send(record: _Record) -> None:
        async def ask() -> None:
            # A call is due when the previous one is answered: no queue forms outside the mesh.
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


async def _driven(
    send: Callable[[_Record], Awaitable[None]], begin: float, stop: asyncio.Event
) -> LoopResult:
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
    return LoopResult(calls, lags, time.process_time() - computed, record.now(), interrupted)


async def _watch(lags: list[float]) -> None:
    """Record how late the event loop wakes: a busy client measures itself."""
    while True:
        asked = time.monotonic()
        await asyncio.sleep(_SAMPLE_S)
        lags.append(1e3 * (time.monotonic() - asked - _SAMPLE_S))
