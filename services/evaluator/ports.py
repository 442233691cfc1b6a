"""What the evaluator's engine needs from the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.evaluator.domain import (
    Measurement,
    Observation,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)
from services.evaluator.reporting import Totals


class ObservationStore(Protocol):
    """Keeps observations for good, and the running aggregates of every run and configuration of a tenant.

    Nothing that one tenant observes changes what another reads, or tells of it.

    Every method raises ``meshkit.errors.Unavailable`` with a reason (``STORE_FULL``, ``STORE_READ_ONLY``,
    ``STORE_LOCKED``, ``STORE_UNAVAILABLE``) when the store cannot do its work now.
    """

    async def open(self) -> None:
        """Makes the store ready; safe to call on one that exists. Raises Unavailable if it cannot be used."""

    async def close(self) -> None:
        """Lets go of the store; nothing else may be called afterwards."""

    async def append(self, batch: Sequence[tuple[Observation, Measurement]]) -> Sequence[bool]:
        """Stores a batch in one transaction, durable by the time it returns: all of it or nothing.

        The answer says for each observation whether it is new. One whose id was stored before, or comes
        earlier in the batch, changes nothing and is not new. The aggregates move in the same transaction, at
        a cost that does not depend on how many observations came before.
        """

    async def totals(self, tenant: str, scope: Scope, window: Window) -> Totals | None:
        """What a tenant's run or configuration adds up to in a window, or None if nothing was ever stored.

        Of a conversation counts only what was observed last, in whichever batch it came.
        """

    async def runs(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """At most ``limit`` runs of a tenant, newest first; with ``before`` of smaller sequence numbers."""

    async def configurations(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """At most ``limit`` configurations of a tenant, in the same way."""

    async def measurements(
        self, tenant: str, run_id: str, *, after: int, limit: int
    ) -> Sequence[StoredMeasurement]:
        """At most ``limit`` measurements of a run in the order of storing, with a sequence above ``after``.

        Normalised expected utility is relative to u_max as it is now.
        """
