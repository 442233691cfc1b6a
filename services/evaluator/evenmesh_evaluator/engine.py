"""The evaluator's engine: it stores observations and reports on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import grpc

from evenmesh.wire import deadline
from evenmesh.wire.errors import MeshError, NotFound
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import (
    Measurement,
    Observation,
    RunReport,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)
from evenmesh_evaluator.reports.summary import report
from evenmesh_kit.compute.batching import MicroBatcher
from evenmesh_kit.compute.tenant_places import TenantPlaces

MAX_NAMES: Final = 100
"""Most providers, and most passages, in a report."""

TENANT_FULL: Final = "TENANT_FULL"
"""Reason of observations that are more than their tenant may keep."""
_REPORTS: Final = 4
"""Most reports that are computed at a time, each of which holds all names that its scope showed."""
_PAGE: Final = 500  # measurements read at a time


class Evaluator:
    """Stores observations and reports on them.

    Observations that wait together share one transaction: while one batch is written, the next collects.
    Under load many observations share the cost of a durable commit; without load none waits.

    Args:
        store: stores observations and aggregates.
        commit_size: most observations in one transaction, [1, inf).
    """

    def __init__(self, store: SqlObservationStore, *, commit_size: int) -> None:
        self._store = store
        self._commits: MicroBatcher[tuple[Observation, Measurement], bool | None] = MicroBatcher(
            store.append, max_size=commit_size, max_delay_s=0.0
        )
        self._report_places = TenantPlaces(_REPORTS, share=0.5, where="the reports of the evaluator")

    async def observe(self, observation: Observation, measurement: Measurement) -> bool:
        """Store one observation; it is durable when this returns.

        Returns whether it is new: an id that was stored before changes nothing.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, ``TENANT_FULL``: the tenant keeps as much as it may.
            Unavailable: the store cannot be written; the caller may send the observation again.
        """
        new = await self._commits.submit((observation, measurement))
        if new is None:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                TENANT_FULL,
                "the tenant has reached its limit of bytes, runs or configurations: use fewer runs and "
                "configurations, delete runs, or have the operator raise EVENMESH_EVALUATOR_TENANT_MB, "
                "…_TENANT_RUNS or …_TENANT_CONFIGURATIONS",
            )
        return new

    async def report(self, tenant: str, scope: Scope, window: Window = Window.ALL) -> RunReport:
        """Return the report of a tenant's run or configuration so far.

        Raises:
            NotFound: it has no observations.
            DeadlineExceeded: the reports before it took too long.
            Unavailable: the store cannot be read now.
        """
        async with self._report_places.hold(deadline.current()):
            totals = await self._store.totals(tenant, scope, window)
            if totals is None:
                if isinstance(scope, str):
                    raise _no_run(scope)
                raise NotFound(
                    "configuration", "it has no observations; list the configurations to see which have"
                )
            return await asyncio.to_thread(report, scope, window, totals, max_names=MAX_NAMES)

    async def runs(
        self, tenant: str, *, before: int | None, limit: int
    ) -> tuple[Sequence[ScopeSummary], int | None]:
        """Return up to ``limit`` runs of a tenant, newest first, and the ``before`` of the next page.

        Pages never repeat or skip a run, whatever is observed meanwhile: runs are ordered by their beginning.

        Raises:
            Unavailable: the store cannot be read now.
        """
        return await _paged(self._store.runs, tenant, before, limit)

    async def configurations(
        self, tenant: str, *, before: int | None, limit: int
    ) -> tuple[Sequence[ScopeSummary], int | None]:
        """Return up to ``limit`` configurations of a tenant, as :meth:`runs` does.

        Raises:
            Unavailable: the store cannot be read now.
        """
        return await _paged(self._store.configurations, tenant, before, limit)

    async def observation(self, tenant: str, observation_id: str) -> bytes:
        """Return the message of a tenant's observation as it was stored.

        Raises:
            NotFound: there is none.
            Unavailable: the store cannot be read now.
        """
        payload = await self._store.observation(tenant, observation_id)
        if payload is None:
            words = f"there is no observation {observation_id!r}; list the measurements of a run to see all"
            raise NotFound("observation_id", words)
        return payload

    async def measurements(self, tenant: str, run_id: str) -> AsyncIterator[StoredMeasurement]:
        """Yield the measurements of a tenant's run in the order of storing, page by page from the store.

        Observations that arrive meanwhile may or may not be included; deleted ones are not.

        Raises:
            NotFound: there is no such run.
            Unavailable: the store cannot be read now.
        """
        after = -1
        while page := await self._store.measurements(tenant, run_id, after=after, limit=_PAGE):
            for one in page:
                yield one
            after = page[-1].sequence
        if after < 0 and not await self._store.has_run(tenant, run_id):
            raise _no_run(run_id)

    async def delete_run(self, tenant: str, run_id: str) -> tuple[bool, int]:
        """Delete a tenant's run, and return whether it was there and how many observations were deleted.

        Between its steps other observations are stored. A call that is cancelled has deleted a part.

        Raises:
            Unavailable: the store cannot be written now; what was deleted before is.
        """
        total = 0
        while not (step := await self._store.delete_run_step(tenant, run_id)).ended:
            total += step.num_observations
        return step.found or total > 0, total

    async def close(self) -> None:
        """Store pending observations."""
        await self._commits.close()


def _no_run(run_id: str) -> NotFound:
    return NotFound("run_id", f"there is no run {run_id!r}; list the runs to see all")


_Listing = Callable[..., Awaitable[Sequence[ScopeSummary]]]


async def _paged(
    listing: _Listing, tenant: str, before: int | None, limit: int
) -> tuple[Sequence[ScopeSummary], int | None]:
    page = await listing(tenant, before=before, limit=limit + 1)
    if len(page) <= limit:
        return page, None
    return page[:limit], page[limit - 1].sequence
