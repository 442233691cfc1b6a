"""Run studies in tests: record what a run reports, and perform units over scripted meshes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from evenmesh.wire.errors import MeshError
from evenmesh_studies.runner import Result, StudyRunner, Unit


@dataclass
class Recorder:
    """Remembers every unit in the order it was written, its result, and the reason of every pause."""

    written_units: list[Any] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    pauses: list[str] = field(default_factory=list)

    def written(self, unit: Unit, result: Result) -> None:
        self.written_units.append(unit)
        self.results.append(result)

    def retrying(self, why: MeshError, pause_s: float) -> None:
        self.pauses.append(why.reason)

    @property
    def notes(self) -> list[str]:
        return [note for result in self.results for note in result.notes]


async def run(runner: StudyRunner[Any], perform: Callable[[Any], Awaitable[Result]]) -> Recorder:
    """Run what is left of a study."""
    recorder = Recorder()
    with runner.journal() as journal:
        await runner.run(journal, perform, recorder)
    return recorder
