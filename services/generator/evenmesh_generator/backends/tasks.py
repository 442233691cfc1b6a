"""Wait for tasks of one call, and leave none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """Return the results of the tasks; cancel the others when one fails or the caller is cancelled."""
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            await ended(task)


async def in_task(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work, which has a task of its own."""
    (found,) = await all_of([asyncio.create_task(work)])
    return found


async def ended(task: asyncio.Task[T]) -> None:
    """Cancel a task and wait for its end; ignore its result."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
