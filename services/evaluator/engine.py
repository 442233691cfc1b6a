"""The evaluator's use cases: observing, reporting, and measuring what a caller brings."""

from __future__ import annotations

from collections.abc import Sequence

from meshkit.batching import MicroBatcher
from meshkit.errors import NotFound
from services.evaluator.domain import Measurement, Observation, RunReport, RunSummary
from services.evaluator.ports import ObservationStore

MAX_PROVIDERS = 100
"""Most providers in a report."""


class Evaluator:
    """Keeps observations and tells what they add up to.

    Observations that wait together share one transaction: while one batch is on its way to the disk, the next
    collects. So the cost of a durable commit is paid once for many under load, and nobody waits without it.

    Args:
        store: where observations and run aggregates live.
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

    async def report(self, run_id: str) -> RunReport:
        """The run so far.

        Raises:
            NotFound: nothing was ever observed in it.
            Unavailable: the store cannot be read now.
        """
        report = await self._store.report(run_id, max_providers=MAX_PROVIDERS)
        if report is None:
            raise NotFound("run_id", f"there is no run {run_id!r}; ListRuns tells which there are")
        return report

    async def runs(self, *, before: int | None, limit: int) -> tuple[Sequence[RunSummary], int | None]:
        """A page of at most ``limit`` runs, newest first, and what to give as ``before`` for the next one.

        Pages never repeat or skip a run, whatever is observed meanwhile: a run's place is given by when it
        began.

        Raises:
            Unavailable: the store cannot be read now.
        """
        runs = await self._store.runs(before=before, limit=limit + 1)
        if len(runs) <= limit:
            return runs, None
        return runs[:limit], runs[limit - 1].sequence

    async def close(self) -> None:
        """Stores what is still waiting."""
        await self._commits.close()
