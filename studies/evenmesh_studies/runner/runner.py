"""Run the units of a study: skip those in the journal, retry transient failures, write results in order."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from evenmesh.long_runs import RetryObserver, in_order, with_retries
from evenmesh_lab.files import Journal
from evenmesh_studies.runner.shards import WHOLE, Shard, Stored, journal_path, read_stored, records_file


class Unit(Protocol):
    """One piece of work, such as one query with one model. It is done whole or not at all."""

    @property
    def name(self) -> str:
        """Name in the journal, unique in the plan."""

    @property
    def title(self) -> str:
        """Name in error messages."""

    @property
    def records(self) -> str:
        """Name of the records file, without shard and ending."""


U = TypeVar("U", bound=Unit)
P = TypeVar("P", bound=Unit, covariant=True)


class Plan(Protocol[P]):
    """What a study asks."""

    kind: ClassVar[str]
    """Name of the journal."""

    def units(self, shard: Shard = WHOLE) -> Iterable[P]:
        """Return the units of a shard in the order they are written."""

    def settings(self, shard: Shard = WHOLE) -> Mapping[str, Any]:
        """Return everything that decides the results, as JSON values. A run resumes only with the same."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one unit produced.

    Attributes:
        lines: records, written to the unit's file.
        facts: versions and names the records were made with. They must not change within a run.
        notes: sentences for the reader of the terminal.
        beside: lines for other files, by name; they are written before ``lines``.
    """

    lines: Sequence[str]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)


Perform = Callable[[U], Awaitable[Result]]
"""Does one unit from the beginning."""


class Progress(RetryObserver, Protocol):
    """Follows a run."""

    def written(self, unit: Unit, result: Result) -> None:
        """Handle a unit whose result was written."""


@dataclass(frozen=True, slots=True)
class StudyRunner(Generic[U]):
    """Runs a plan into a folder. A run that was killed continues where it stopped.

    Attributes:
        plan: what to run.
        folder: holds the journal and the records.
        shard: part of the plan that this run does.
        in_flight: units under way at once, from 1.
        retry_for_s: seconds that one unit may fail before the run gives up.
    """

    plan: Plan[U]
    folder: Path
    shard: Shard = WHOLE
    in_flight: int = 2
    retry_for_s: float = 600.0

    def journal(self) -> Journal:
        """Return the journal of the shard, to be opened in a ``with`` block."""
        path = journal_path(self.folder, self.plan.kind, self.shard)
        return Journal(path, self.plan.settings(self.shard))

    def pending(self, journal: Journal) -> list[U]:
        """Return the units of the shard that are not in the journal yet."""
        done = set(journal.done)
        return [unit for unit in self.plan.units(self.shard) if unit.name not in done]

    async def run(self, journal: Journal, perform: Perform[U], progress: Progress) -> None:
        """Run the pending units a few at a time and write their results in the plan's order.

        Args:
            journal: of this runner, open.
            perform: does one unit.
            progress: follows the run.

        Raises:
            MeshError: a unit is refused, or keeps failing for ``retry_for_s``.
            FileError: what the results are made with changed since the run began.
        """

        done = set(journal.done)

        async def retried(unit: U) -> Result:
            return await with_retries(
                lambda: perform(unit), unit.title, progress, retry_for_s=self.retry_for_s
            )

        async def write(unit: U, result: Result) -> None:
            # The journal counts a unit as done only once its own lines are there, so those go last.
            for name, lines in result.beside.items():
                if (piece := f"{name} {unit.name}") not in done:
                    await asyncio.to_thread(journal.add, piece, records_file(name, self.shard), lines)
            file = records_file(unit.records, self.shard)
            await asyncio.to_thread(journal.add, unit.name, file, result.lines, result.facts)
            progress.written(unit, result)

        await in_order(self.pending(journal), retried, write, in_flight=self.in_flight)

    def stored(self) -> Stored:
        """Return what all shards of the run have written so far.

        Raises:
            FileError: a journal is missing, damaged, or of other settings.
        """
        return read_stored(self.folder, self.plan.kind, self.shard, self.plan.settings)

    def missing(self, stored: Stored) -> int:
        """Return how many units of the whole plan are not written yet."""
        return sum(unit.name not in stored.done for unit in self.plan.units())
