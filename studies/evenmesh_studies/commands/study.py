"""What the commands of all studies share: options, refusing a plan, and running it under a progress bar."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenmesh.commands.failure import refuse
from evenmesh.commands.progress import CountDisplay
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh.addresses import Addresses
    from evenmesh_studies.runner import Perform, Result, Shard, StudyRunner, Unit
    from evenmesh_studies.runner.preflight import Preflight

Queries = Annotated[
    Path, typer.Argument(help="Questions: JSON lines or Parquet of query_id, question, references.")
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the records and the report.")
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="Generator's model. May be repeated.  [default: the mesh's own]"),
]
Retrievers = Annotated[
    list[str] | None, typer.Option("--retriever", "-r", help="By name. May be repeated.  [default: bm25]")
]
Collection = Annotated[
    str | None,
    typer.Option("--collection", "-c", help="Collection of passages, unless the questions bring their own."),
]
Template = Annotated[
    str | None, typer.Option(help="Prompt by name, such as lamp-4. Default: the model's own.")
]
Observe = Annotated[bool, typer.Option("--observe/--no-observe", help="Send observations to the evaluator.")]
Run = Annotated[str, typer.Option(help="Run to file observations under. Default: a new one.")]
ShardText = Annotated[
    str, typer.Option("--shard", metavar="I/N", help="Every N-th question from the I-th, counted from 0.")
]
InFlight = Annotated[int, typer.Option(min=1, max=64, help="Questions asked at a time.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one question.")]
RetryFor = Annotated[
    float,
    typer.Option("--retry-for", min=0, help="Seconds to retry a failed question or an unreachable mesh."),
]
Level = Annotated[float, typer.Option(help="Confidence level of intervals.")]
TrainedOn = Annotated[
    list[str] | None,
    typer.Option(
        "--trained-on",
        metavar="MODEL=FOLDER",
        help="Training folder of a served model, to find what it has seen. May be repeated; the bundled "
        "models are known.",
    ),
]


def shard_of(text: str, problems: list[str]) -> "Shard":
    """Return the shard that ``--shard`` names; add what is wrong with it to ``problems``."""
    from evenmesh_studies.runner.shards import WHOLE, read_shard

    found = read_shard(text)
    if found is None:
        problems.append(f"--shard {text}: allowed: I/N with I from 0 and below N")
    return found or WHOLE


def choice(option: str, value: Any, allowed: Sequence[str], problems: list[str]) -> Any:
    """Return the value if it is allowed or None; else add a problem and return None."""
    if value is None or value in allowed:
        return value
    problems.append(f"{option} {value}: allowed: {', '.join(allowed)}")
    return None


def models_of(asked: list[str] | None, addresses: "Addresses") -> list[str]:
    """Return the models asked for, or else the mesh's default, if it has one.

    Raises:
        MeshError: the mesh does not answer.
    """
    from evenmesh.inventory import models

    return asked or [one.name for one in models(addresses)[:1]]


def refuse_problems(screen: Screen, found: "Preflight") -> None:
    """Show the notes of a preflight, and end the command if there are problems.

    Raises:
        CommandError: there are.
    """
    for note in found.notes:
        screen.note(f"note: {note}")
    refuse(screen, found.problems)


class _RunProgress:
    """Shows a run on the screen.

    Args:
        screen: where.
        display: counts units.
        asked: what the run waits for when it pauses.
    """

    def __init__(self, screen: Screen, display: CountDisplay, asked: str) -> None:
        self._screen = screen
        self._display = display
        self._asked = asked

    def written(self, unit: "Unit", result: "Result") -> None:
        """Count a unit and show its notes."""
        self._display.advance()
        for note in result.notes:
            self._screen.note(f"note: {note}")

    def retrying(self, why: Exception, pause_s: float) -> None:
        """Show why the run pauses."""
        self._screen.note(f"{self._asked}{why}; asking again in {pause_s:.1f} s", style="yellow")


def run_study(
    screen: Screen,
    runner: "StudyRunner[Any]",
    connected: "Callable[[], AbstractAsyncContextManager[Perform[Any]]]",
    counted: str,
    *,
    asked: str = "the mesh: ",
) -> None:
    """Run the rest of a study under a progress bar.

    Args:
        screen: where the bar is.
        runner: of the study.
        connected: connects to what is asked and gives the function that does one unit.
        counted: what the units are, in a word or two.
        asked: begins the line that says why the run pauses.

    Raises:
        MeshError: a unit is refused, or keeps failing.
        FileError: the folder holds another run, or another process works on it.
    """
    with runner.journal() as journal:
        total = sum(1 for _ in runner.plan.units(runner.shard))
        done = total - len(runner.pending(journal))

        async def run(progress: _RunProgress) -> None:
            async with connected() as perform:
                await runner.run(journal, perform, progress)

        with CountDisplay(screen, counted, total=total, done=done) as display:
            asyncio.run(run(_RunProgress(screen, display, asked)))


def others_missing(screen: Screen, runner: "StudyRunner[Any]", counted: str, then: str) -> bool:
    """Say how many units other shards still miss; return whether there are any."""
    missing = runner.missing(runner.stored())
    if missing:
        screen.note(f"{missing:,} {counted} of other shards are missing; {then}")
    return missing > 0


def show_part(screen: Screen, name: str) -> None:
    """Show the heading of the results of some questions."""
    screen.line(f"{name.capitalize()} questions", style="bold")
