"""What is shown while something takes its time: on a terminal it moves, elsewhere it is a line or two."""

import time
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ragmesh.cli.screen import Screen, clean
from ragmesh.mesh.progress import Phase
from ragmesh.mesh.progress import Progress as Step


class IngestDisplay:
    """Shows passages on their way, and then that they are being indexed.

    Args:
        screen: where.
        what: what is ingested, in a word or two.
        total: passages in it.
    """

    def __init__(self, screen: Screen, what: str, total: int) -> None:
        self._screen = screen
        self._what = what
        self._total = total
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._screen.err.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._screen.err,
                transient=True,
            )
            self._task = self._bar.add_task(f"sending {self._what}", total=self._total)
            self._bar.start()
        else:
            self._screen.note(f"ingesting {self._total:,} passages of {self._what}")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def sent(self, passages: int) -> None:
        """So many have been sent."""
        if self._bar is None:
            return
        if passages < self._total:
            self._bar.update(self._task, completed=passages)
        else:
            # How far the index has come is not told; the bar only shows that it is being made.
            self._bar.update(self._task, description=f"indexing {self._what}", total=None)


class EmbeddingDisplay:
    """Shows vectors being made.

    Args:
        screen: where.
        what: what they are of, in a word or two.
    """

    def __init__(self, screen: Screen, what: str) -> None:
        self._screen = screen
        self._what = what
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._screen.err.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                console=self._screen.err,
                transient=True,
            )
            self._task = self._bar.add_task(f"making vectors of {self._what}", total=1.0)
            self._bar.start()
        else:
            self._screen.note(f"making vectors of {self._what}; it can be asked meanwhile")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def embedded(self, share: float) -> None:
        """So large a share of the passages has vectors."""
        if self._bar is not None:
            self._bar.update(self._task, completed=share)


class ExportDisplay:
    """Shows passages arriving.

    Args:
        screen: where.
        what: what they are of, in a word or two.
    """

    def __init__(self, screen: Screen, what: str) -> None:
        self._screen = screen
        self._what = what
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._screen.err.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._screen.err,
                transient=True,
            )
            self._task = self._bar.add_task(f"exporting {self._what}", total=None)
            self._bar.start()
        else:
            self._screen.note(f"exporting {self._what}")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def arrived(self, passages: int, total: int) -> None:
        """So many of so many have come."""
        if self._bar is not None:
            self._bar.update(self._task, completed=passages, total=total)


class StartDisplay:
    """Shows how the services come up.

    Args:
        screen: where.
        services: their names, in the order they are shown.
    """

    def __init__(self, screen: Screen, services: tuple[str, ...]) -> None:
        self._screen = screen
        self._steps: dict[str, Step | None] = dict.fromkeys(services)
        self._serving_s: dict[str, float] = {}
        self._began = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._screen.err.is_terminal:
            self._live = Live(
                get_renderable=self._table, console=self._screen.err, transient=True, refresh_per_second=10
            )
            self._live.start()
        else:
            self._screen.note("starting the mesh")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shows no more."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def observe(self, step: Step) -> None:
        """Takes one step of the mesh."""
        self._steps[step.service] = step
        if step.phase is Phase.SERVING:
            self._serving_s.setdefault(step.service, time.monotonic() - self._began)
        if self._live is None and step.phase is Phase.SERVING:
            self._screen.note(f"{step.service} serves after {self._serving_s[step.service]:.1f} s")

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for service, step in self._steps.items():
            if step is None or step.phase is Phase.STARTING:
                table.add_row(self._spinner, service, Text("starting", style="dim"))
            elif step.phase is Phase.SERVING:
                after = Text(f"serving after {self._serving_s[service]:.1f} s", style="dim")
                table.add_row(Text("✓", style="green"), service, after)
            else:
                what = Text(clean(f"{step.phase} {step.detail}"), style="yellow")
                table.add_row(Text("!", style="yellow"), service, what)
        return table
