"""The evaluator's use cases around observations: taking them in, and telling what they add up to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from meshkit.batching import MicroBatcher
from meshkit.errors import NotFound
from services.evaluator import reporting
from services.evaluator.domain import (
    Measurement,
    Observation,
    RunReport,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)
from services.evaluator.ports import ObservationStore

MAX_NAMES: Final = 100
"""Most providers, and most passages, in a report."""

_PAGE: Final = 500  # measurements read at a time


class Evaluator:
    """Keeps observations and tells what they add up to.

    Observations that wait together share one transaction: while one batch is on its way to the disk, the next
    collects. So the cost of a durable commit is paid once for many under load, and nobody waits without it.

    Args:
        store: where observations and aggregates live.
        commit_size: most observations in one transaction, [1, inf).
    """

    def __init__(self, store: ObservationStore, *, commit_size: int) -> None:
        self._store = store
        self._commits: MicroBatcher[tuple[Observation, Measurement], bool] = MicroBatcher(
            store.append, max_size=commit_size, max_delay_s=0.0
        )

    async def observe(self, observation: Observation, measurement: Measurement) -> bool:
        """Stores one observation for good; durable by the time it returns.

        Returns whether it is new: an id that was stored before changes nothing.

        Raises:
            Unavailable: it could not be stored; it may be sent again.
        """
        return await self._commits.submit((observation, measurement))

    async def report(self, tenant: str, scope: Scope, window: Window = Window.ALL) -> RunReport:
        """A tenant's run or configuration so far.

        Raises:
            NotFound: nothing was ever observed in it.
            Unavailable: the store cannot be read now.
        """
        totals = await self._store.totals(tenant, scope, window)
        if totals is None:
            if isinstance(scope, str):
                raise NotFound("run_id", f"there is no run {scope!r}; ListRuns tells which there are")
            raise NotFound(
                "configuration", "nothing was observed of it; ListConfigurations tells which there are"
            )
        return await asyncio.to_thread(reporting.report, scope, window, totals, max_names=MAX_NAMES)

    async def runs(
        self, tenant: str, *, before: int | None, limit: int
    ) -> tuple[Sequence[ScopeSummary], int | None]:
        """A page of at most ``limit`` runs of a tenant, newest first, and the ``before`` of the next one.

        Pages never repeat or skip a run, whatever is observed meanwhile: a run's place is given by when it
        began.

        Raises:
            Unavailable: the store cannot be read now.
        """
        return await _paged(self._store.runs, tenant, before, limit)

    async def configurations(
        self, tenant: str, *, before: int | None, limit: int
    ) -> tuple[Sequence[ScopeSummary], int | None]:
        """A page of at most ``limit`` configurations of a tenant, in the same way.

        Raises:
            Unavailable: the store cannot be read now.
        """
        return await _paged(self._store.configurations, tenant, before, limit)

    async def measurements(self, tenant: str, run_id: str) -> AsyncIterator[StoredMeasurement]:
        """What was measured in a tenant's run, in the order of storing, page by page from the store.

        What is observed meanwhile may or may not be among it.

        Raises:
            NotFound: nothing was ever observed in it.
            Unavailable: the store cannot be read now.
        """
        after = -1
        while page := await self._store.measurements(tenant, run_id, after=after, limit=_PAGE):
            for one in page:
                yield one
            after = page[-1].sequence
        if after < 0:
            raise NotFound("run_id", f"there is no run {run_id!r}; ListRuns tells which there are")

    async def close(self) -> None:
        """Stores what is still waiting."""
        await self._commits.close()


_Listing = Callable[..., Awaitable[Sequence[ScopeSummary]]]


async def _paged(
    listing: _Listing, tenant: str, before: int | None, limit: int
) -> tuple[Sequence[ScopeSummary], int | None]:
    page = await listing(tenant, before=before, limit=limit + 1)
    if len(page) <= limit:
        return page, None
    return page[:limit], page[limit - 1].sequence
