"""The store that the evaluator's engine needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evenmesh_evaluator.domain import (
    Measurement,
    Observation,
    ProviderBalance,
    ProviderDay,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)
from evenmesh_evaluator.reports.summary import Totals


class ObservationStore(Protocol):
    """Stores observations, and the running aggregates of every run and configuration of a tenant.

    Tenants are isolated: no observation of one changes or reveals anything to another.

    Every method raises ``evenmesh.wire.errors.Unavailable`` when the store cannot work now, with a reason:
    ``STORE_FULL``, ``STORE_READ_ONLY``, ``STORE_LOCKED``, ``STORE_VERSION`` or ``STORE_UNAVAILABLE``.
    """

    async def open(self) -> None:
        """Make the store ready, creating it where it does not exist."""

    async def close(self) -> None:
        """Close the store; call nothing else afterwards."""

    async def append(self, batch: Sequence[tuple[Observation, Measurement]]) -> Sequence[bool | None]:
        """Store a batch in one transaction, all of it or nothing; it is durable when this returns.

        Returns for each observation whether it is new; None for one that is more than its tenant may keep,
        which is not stored. One whose id was stored before, or comes earlier in the batch, changes nothing
        and is not new. The same transaction updates the aggregates, at a cost that does not depend on the
        number of earlier observations.
        """

    async def totals(self, tenant: str, scope: Scope, window: Window) -> Totals | None:
        """Return the totals of a tenant's run or configuration in a window; None if nothing was ever stored.

        Of a conversation only the latest observation counts, in whichever batch it came.
        """

    async def provider_days(
        self, tenant: str, provider: str, *, first_day: int, last_day: int
    ) -> Sequence[ProviderDay]:
        """Return what each configuration of a tenant showed of a provider on each day of a window.

        Days are UTC, counted from 1970-01-01. They come by configuration, the oldest first, then by day.
        """

    async def balance(
        self, tenant: str, collection: str, *, half_life_days: float, limit: int
    ) -> Sequence[ProviderBalance]:
        """Return what the providers of a collection are owed, those furthest from their target first.

        Every configuration counts; a day's asks count half after ``half_life_days``.
        """

    async def reset_balance(self, tenant: str, collection: str) -> int:
        """Forget what the providers of a collection are owed, and return how many they were."""

    async def runs(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """Return up to ``limit`` runs of a tenant, newest first, with a sequence below ``before``."""

    async def configurations(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """Return up to ``limit`` configurations of a tenant, as :meth:`runs` does."""

    async def observation(self, tenant: str, observation_id: str) -> bytes | None:
        """Return the payload of a tenant's observation; None if there is none."""

    async def measurements(
        self, tenant: str, run_id: str, *, after: int, limit: int
    ) -> Sequence[StoredMeasurement]:
        """Return up to ``limit`` measurements of a run, in the order of storing, with a sequence > ``after``.

        Normalised expected utility is relative to the current u_max.
        """
