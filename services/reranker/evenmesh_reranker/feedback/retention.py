"""Delete old feedback and served rankings, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.tasks import cancel
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.served import SqlServedStore

_BATCH: Final = 500
_PAUSE_S: Final = 0.05
_EVERY_S: Final = 3600.0
_DAY_US: Final = 24 * 3600 * 10**6
_log = logging.getLogger("evenmesh.reranker.retention")


class _Delete(Protocol):
    async def __call__(self, before_us: int, *, limit: int) -> int: ...


class Retention:
    """Deletes feedback and served rankings past their age every hour.

    It deletes small batches with pauses, so that whoever stores meanwhile waits for one batch at most.

    Args:
        feedback: the feedback.
        feedback_days: age at which feedback is deleted. Days, [1, inf).
        served: the served rankings.
        served_days: age at which these are deleted. Days, [1, inf).
        clock: returns the time now. Microseconds since 1970.
    """

    def __init__(
        self,
        feedback: SqlFeedbackStore,
        *,
        feedback_days: int,
        served: SqlServedStore,
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
        """Begin, and repeat every hour."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; the next start deletes the rest."""
        await cancel(self._task)

    async def sweep(self) -> int:
        """Delete all that is too old; return the number of items of feedback.

        Raises:
            Unavailable: the store cannot be written now.
        """
        deleted = await self._delete(self._feedback.delete_before, self._feedback_days)
        await self._delete(self._served.forget_before, self._served_days)
        return deleted

    async def _delete(self, delete: _Delete, days: int) -> int:
        before, deleted, gone = self._clock() - days * _DAY_US, 0, _BATCH
        while gone == _BATCH:
            gone = await delete(before, limit=_BATCH)
            deleted += gone
            await asyncio.sleep(_PAUSE_S)
        return deleted

    async def _run(self) -> None:
        while True:
            try:
                if deleted := await self.sweep():
                    _log.info("old feedback deleted", extra={"items": deleted})
            except Unavailable as error:
                _log.warning("old feedback is deleted later: %s", error.message)
            except Exception:  # noqa: BLE001 - this task must not end: feedback would stay, unnoticed
                _log.exception("old feedback is deleted later")
            await asyncio.sleep(_EVERY_S)
