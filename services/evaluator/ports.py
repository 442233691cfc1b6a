"""What the evaluator's engine needs from the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.evaluator.domain import Measurement, Observation, RunReport, RunSummary


class ObservationStore(Protocol):
    """Keeps observations for good, and the running aggregates of every run.

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
        earlier in the batch, changes nothing and is not new. The aggregates of the runs move in the same
        transaction, at a cost that does not depend on how many observations came before.
        """

    async def report(self, run_id: str, *, max_providers: int) -> RunReport | None:
        """The run so far with its most exposed providers, or None if nothing was ever stored for it."""

    async def runs(self, *, before: int | None, limit: int) -> Sequence[RunSummary]:
        """At most ``limit`` runs, newest first; with ``before`` only those of a smaller sequence number."""
