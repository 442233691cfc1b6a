"""Delete observations that were kept for long enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from evenmesh.wire.errors import MeshError
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_kit.storage.sql import now_us

PERIOD_S: Final = 3600.0
"""Time between two searches for what is due. Seconds."""

_log = logging.getLogger("evenmesh.evaluator.retention")


class Retention:
    """Deletes observations some time after they were stored, at the start and every hour.

    Several evaluators on one database may each do so. While the database cannot be reached, nothing is
    deleted; the next search deletes it.

    Args:
        store: where they are.
        keep: how long each is kept.
        clock: the time. Microseconds since 1970.
    """

    def __init__(
        self, store: SqlObservationStore, keep: timedelta, *, clock: Callable[[], int] = now_us
    ) -> None:
        self._store = store
        self._keep_us = keep // timedelta(microseconds=1)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the background."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, without waiting for what is due; a transaction is made whole or not at all."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def delete(self) -> int:
        """Delete all that is due now, and return how many observations it was.

        Raises:
            MeshError: the database cannot be reached, or failed; what was deleted before is.
        """
        before_us = self._clock() - self._keep_us
        total = 0
        while count := await self._store.delete_before(before_us):
            total += count
        if total:
            _log.info("observations were deleted", extra={"observations": total})
        return total

    async def _run(self) -> None:
        while True:
            try:
                await self.delete()
            except MeshError as error:
                _log.warning("old observations were not deleted: %s", error, extra={"reason": error.reason})
            except Exception:  # noqa: BLE001 - this task must not end: texts would stay, unnoticed
                _log.exception("old observations were not deleted")
            await asyncio.sleep(PERIOD_S)
