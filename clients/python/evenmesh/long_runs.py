"""Run many calls of a mesh: retry failures that may pass, a few at a time, with results in order."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

from evenmesh.wire.errors import SHARE_FULL, MeshError

U = TypeVar("U")
R = TypeVar("R")

_RETRYABLE: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED", "UNKNOWN", "INTERNAL"}
)
RETRYABLE_REASONS: Final = frozenset(
    {
        "UPSTREAM_UNAVAILABLE",
        "CIRCUIT_OPEN",
        "BUDGET_EXCEEDED",
        "UPSTREAM_OVERLOADED",
        SHARE_FULL,
        "UPSTREAM_ERROR",
    }
)
"""Reasons of degradations that another try may not meet."""
_TOO_MUCH: Final = frozenset({"OVER_CAPACITY", "REQUEST_TOO_LARGE", "OBSERVATION_TOO_LARGE"})

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 20.0


def may_pass(code: str, reason: str) -> bool:
    """Return whether another try may not meet a failure.

    Args:
        code: name of its gRPC status.
        reason: its reason; what never fits, such as ``OVER_CAPACITY``, must be asked for in smaller pieces.
    """
    return code in _RETRYABLE and reason not in _TOO_MUCH


class RetryObserver(Protocol):
    """Gets a call before every retry."""

    def retrying(self, why: MeshError, pause_s: float) -> None:
        """Report that the work failed and is tried again after a pause. Seconds."""


async def with_retries(
    work: Callable[[], Awaitable[R]], what: str, observer: RetryObserver, *, retry_for_s: float
) -> R:
    """Return the result of ``work``; retry it while its failures may pass.

    Args:
        work: does all of it from the beginning.
        what: its name, for messages.
        observer: gets a call before every retry.
        retry_for_s: how long to retry, from the first failure. Seconds.

    Raises:
        MeshError: the work failed in a way that does not pass, or for longer than that.
    """
    pause_s, gives_up_at = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            return await work()
        except MeshError as error:
            now = time.monotonic()
            gives_up_at = gives_up_at or now + retry_for_s
            if not may_pass(error.code.name, error.reason) or now >= gives_up_at:
                raise MeshError(
                    error.code,
                    error.reason,
                    f"{what}: {error.message}",
                    field=error.field,
                    retry_after_s=error.retry_after_s,
                ) from error
            wait_s = max(pause_s, error.retry_after_s or 0.0)
            observer.retrying(error, wait_s)
        await asyncio.sleep(wait_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def in_order(
    units: Iterable[U],
    work: Callable[[U], Awaitable[R]],
    write: Callable[[U, R], Awaitable[None]],
    *,
    in_flight: int,
) -> None:
    """Work on a few units at a time and write their results in the order of the units, so that equal runs
    write equal files.

    When one fails, or this is cancelled, the others are cancelled, and no later result is written.

    Args:
        units: the units.
        work: does one.
        write: writes the result of one; is never called twice at a time.
        in_flight: most units in progress or waiting to be written, from 1.
    """

    async def done(unit: U) -> R:
        return await work(unit)

    todo = iter(units)
    waiting: deque[tuple[U, asyncio.Task[R]]] = deque()
    try:
        while True:
            while len(waiting) < in_flight:
                for unit in todo:
                    waiting.append((unit, asyncio.create_task(done(unit))))
                    break
                else:
                    break
            if not waiting:
                return
            unit, task = waiting[0]
            result = await task
            waiting.popleft()
            await write(unit, result)
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
