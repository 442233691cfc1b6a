"""Show the progress of long work: a bar on a terminal, a line now and then elsewhere."""

import time
from datetime import timedelta
from typing import Final, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from evenmesh.commands.screen import Screen

_LINES: Final = 10
"""Lines over a whole count, where there is no terminal."""


class ProgressDisplay:
    """Shows how much of some work is done.

    Args:
        screen: where.
        text: the work, shown next to the bar.
        note: line shown instead of a bar without a terminal; empty for none.
        total: what makes the work complete; None where that is not known yet.
        done: what is done already.
        columns: what stands behind the bar; by default the counts and the time.
        then: the work that follows, of unknown length, once this is complete; empty for none.
    """

    def __init__(
        self,
        screen: Screen,
        text: str,
        *,
        note: str = "",
        total: float | None = None,
        done: int = 0,
        columns: tuple[ProgressColumn, ...] = (),
        then: str = "",
    ) -> None:
        self._screen, self._note = screen, note
        self._total, self._then = total, then
        self._bar: Progress | None = None
        if screen.err.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                *(columns or (MofNCompleteColumn(), TimeElapsedColumn())),
                console=screen.err,
                transient=True,
                speed_estimate_period=600,
            )
            self._task = self._bar.add_task(text, total=total, completed=done)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        elif self._note:
            self._screen.note(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: float, total: float | None = None) -> None:
        """Show what is done by now, and the total once it is known."""
        if self._bar is None:
            return
        if self._then and self._total is not None and done >= self._total:
            self._bar.update(self._task, description=self._then, total=None)
        else:
            self._bar.update(self._task, completed=done, total=total or self._total)


def ingest_display(screen: Screen, what: str, total: int) -> ProgressDisplay:
    """Return a display of passages that are sent, and then indexed."""
    return ProgressDisplay(
        screen,
        f"sending {what}",
        note=f"ingesting {total:,} passages of {what}",
        total=total,
        then=f"indexing {what}",
    )


def embedding_display(screen: Screen, what: str) -> ProgressDisplay:
    """Return a display of the share of passages that have vectors, 0 to 1."""
    return ProgressDisplay(
        screen,
        f"making vectors of {what}",
        note=f"making vectors of {what}; it can be asked meanwhile",
        total=1.0,
        columns=(TaskProgressColumn(), TimeElapsedColumn()),
    )


class CountDisplay(ProgressDisplay):
    """Shows how many units of work are done, and the time that the others take.

    Args:
        screen: where.
        what: the units, in a word or two.
        total: number of units.
        done: units that were done before.
    """

    def __init__(self, screen: Screen, what: str, *, total: int, done: int = 0) -> None:
        columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
        super().__init__(screen, what, total=total, done=done, columns=columns)
        self._what, self._units = what, total
        self._before = self._done = done
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._done:
            self._screen.note(f"going on after {self._done:,} of {self._units:,} {self._what}")
        return super().__enter__()

    def advance(self) -> None:
        """Count one more unit."""
        self._done += 1
        self.update(self._done)
        if (
            self._bar is None
            and self._done * _LINES // self._units > (self._done - 1) * _LINES // self._units
        ):
            pace = (time.monotonic() - self._began) / (self._done - self._before)
            left = timedelta(seconds=round(pace * (self._units - self._done)))
            self._screen.note(f"{self._done:,} of {self._units:,} {self._what}; {left} left")
