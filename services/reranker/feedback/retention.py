"""Letting go of what is old, a little at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from meshkit.errors import Unavailable
from services.reranker.feedback.ports import FeedbackStore, ServedStore

_BATCH: Final = 500
_PAUSE_S: Final = 0.05
_EVERY_S: Final = 3600.0
_DAY_US: Final = 24 * 3600 * 10**6
_log = logging.getLogger("ragmesh.reranker.retention")


class Retention:
    """Deletes feedback and memories of rankings past their age, in small batches with pauses between them.

    Nobody who stores meanwhile waits for more than one small batch.

    Args:
        feedback: the feedback.
        feedback_days: how long it is kept. Days, [1, inf).
        served: what was served.
        served_days: how long that is remembered. Days, [1, inf).
        clock: what time it is. Microseconds since 1970.
    """

    def __init__(
        self,
        feedback: FeedbackStore,
        *,
        feedback_days: int,
        served: ServedStore,
        served_days: int,
        clock: Callable[[], int],
    ) -> None:
        self._feedback = feedback
        self._feedback_days = feedback_days
        self._served = served
        self._served_days = served_days
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, and goes on every hour."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends; what is not deleted by then is so next time."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def sweep(self) -> int:
        """Deletes all that is too old; says how many items of feedback.

        Raises:
            Unavailable: the store cannot be written now.
        """
        deleted = 0
        before = self._clock() - self._feedback_days * _DAY_US
        gone = _BATCH
        while gone == _BATCH:
            gone = await self._feedback.delete_before(before, limit=_BATCH)
            deleted += gone
            await asyncio.sleep(_PAUSE_S)
        before = self._clock() - self._served_days * _DAY_US
        gone = _BATCH
        while gone == _BATCH:
            gone = await self._served.forget_before(before, limit=_BATCH)
            await asyncio.sleep(_PAUSE_S)
        return deleted

    async def _run(self) -> None:
        while True:
            try:
                if deleted := await self.sweep():
                    _log.info("old feedback deleted", extra={"items": deleted})
            except Unavailable as error:
                _log.warning("old feedback is deleted later: %s", error.message)
            await asyncio.sleep(_EVERY_S)
