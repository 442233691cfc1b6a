"""Background tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib


async def cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end; do nothing without one.

    Raises:
        Exception: as the task did before it was cancelled.
    """
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
