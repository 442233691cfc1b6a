"""What commands share that run for long over a mesh: options, refusing at once, and telling how it goes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragmesh.cli.counting import CountDisplay
from ragmesh.cli.failure import refuse
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from raglab.files import Journal
    from ragmesh.addresses import Addresses
    from ragmesh.preflight import Findings
    from ragmesh.shards import Shard

Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="Generator's model. May be repeated.  [default: the mesh's own]"),
]
Retrievers = Annotated[
    list[str] | None, typer.Option("--retriever", "-r", help="By name. May be repeated.  [default: bm25]")
]
Collection = Annotated[
    str | None,
    typer.Option("--collection", "-c", help="Where passages come from, unless queries bring theirs."),
]
ShardText = Annotated[
    str, typer.Option("--shard", metavar="I/N", help="Every N-th question from the I-th, counted from 0.")
]
InFlight = Annotated[int, typer.Option(min=1, max=64, help="Questions asked at a time.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one question.")]
Patience = Annotated[
    float, typer.Option(min=0, help="Seconds the mesh may be away or overloaded before this gives up.")
]


def shard_of(text: str, problems: list[str]) -> "Shard":
    """The shard that ``--shard`` names; what is wrong with it goes to ``problems``."""
    from ragmesh.shards import WHOLE, read_shard

    found = read_shard(text)
    if found is None:
        problems.append(f"--shard {text}: allowed: I/N with I from 0 and below N")
    return found or WHOLE


def choice(option: str, value: Any, allowed: Sequence[str], problems: list[str]) -> Any:
    """The value if it is one of those allowed, or None; None itself always is."""
    if value is None or value in allowed:
        return value
    problems.append(f"{option} {value}: allowed: {', '.join(allowed)}")
    return None


def models_of(asked: list[str] | None, addresses: "Addresses") -> list[str]:
    """The models that are asked for, or else the mesh's own, of which there may be none.

    Raises:
        MeshError: the mesh does not tell.
    """
    from ragmesh.inventory import models

    return asked or [one.name for one in models(addresses)[:1]]


def tell(screen: Screen, findings: "Findings") -> None:
    """Tells what a reader should know, and ends the command if something is wrong.

    Raises:
        CommandError: something is.
    """
    for note in findings.notes:
        screen.note(f"note: {note}")
    refuse(screen, findings.problems)


class Watcher:
    """Tells the screen how a run goes.

    Args:
        screen: where.
        display: counts units.
        notes: what a reader should know of a unit that was written.
        who: what is waited for.
    """

    def __init__(
        self,
        screen: Screen,
        display: CountDisplay,
        notes: Callable[[Any], Iterable[str]],
        who: str = "the mesh: ",
    ) -> None:
        self._screen = screen
        self._display = display
        self._notes = notes
        self._who = who

    def written(self, what: Any) -> None:
        """A unit is written."""
        self._display.advance()
        for note in self._notes(what):
            self._screen.note(f"note: {note}")

    def waits(self, why: Any, pause_s: float) -> None:
        """What is asked fails, and is asked again after a pause."""
        self._screen.note(f"{self._who}{why}; asking again in {pause_s:.1f} s", style="yellow")


def go_on(
    screen: Screen,
    what: str,
    names: Sequence[str],
    journal: "Journal",
    notes: Callable[[Any], Iterable[str]],
    run: Callable[[Watcher], Awaitable[None]],
    *,
    who: str = "the mesh: ",
) -> None:
    """Runs what is not in the journal yet, under a bar.

    Args:
        screen: where the bar is.
        what: the units, in a word or two.
        names: of all units.
        journal: what is done.
        notes: as for :class:`Watcher`.
        run: does the rest, and tells the watcher.
        who: as for :class:`Watcher`.
    """
    there = set(journal.done)
    display = CountDisplay(screen, what, total=len(names), done=sum(name in there for name in names))

    async def all_of_it() -> None:
        await run(Watcher(screen, display, notes, who))

    with display:
        asyncio.run(all_of_it())
