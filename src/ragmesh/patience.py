"""Long runs over a mesh: units of work a few at a time, in their order, through restarts of services."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

from meshkit.errors import MeshError

U = TypeVar("U")
R = TypeVar("R")

PASSING: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED", "UNKNOWN", "INTERNAL"}
)
"""Codes of failures that another try may not meet."""
PASSING_REASONS: Final = frozenset(
    {"UPSTREAM_UNAVAILABLE", "CIRCUIT_OPEN", "BUDGET_EXCEEDED", "UPSTREAM_OVERLOADED", "UPSTREAM_ERROR"}
)
"""Reasons of degradations that another try may not meet."""

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 20.0


class Waits(Protocol):
    """Who is told that the mesh is waited for."""

    def waits(self, why: MeshError, pause_s: float) -> None:
        """The mesh fails; it is asked again after a pause."""


async def patiently(work: Callable[[], Awaitable[R]], what: str, watcher: Waits, *, patience_s: float) -> R:
    """The result of a unit of work, tried again while what it meets may pass.

    Args:
        work: does it, from the beginning.
        what: the unit, for messages.
        watcher: is told of every pause.
        patience_s: how long it may fail, from its first failure. Seconds.

    Raises:
        MeshError: it is refused, or failed for longer than that.
    """
    pause_s, gives_up_at = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            return await work()
        except MeshError as error:
            now = time.monotonic()
            gives_up_at = gives_up_at or now + patience_s
            if error.code.name not in PASSING or now >= gives_up_at:
                raise MeshError(
                    error.code,
                    error.reason,
                    f"{what}: {error.message}",
                    field=error.field,
                    retry_after_s=error.retry_after_s,
                ) from error
            wait_s = max(pause_s, error.retry_after_s or 0.0)
            watcher.waits(error, wait_s)
        await asyncio.sleep(wait_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def in_order(
    units: Iterable[U],
    work: Callable[[U], Awaitable[R]],
    write: Callable[[U, R], Awaitable[None]],
    *,
    in_flight: int,
) -> None:
    """Does units of work a few at a time and writes their results in the order of the units.

    So equal runs write equally. When one fails, or this is cancelled, the others are cancelled, and what
    comes after it is not written.

    Args:
        units: what is to be done.
        work: does one.
        write: writes one; never two at a time.
        in_flight: units under way or waiting to be written, from 1.
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
