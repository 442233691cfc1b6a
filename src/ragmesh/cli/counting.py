"""How far a long run is, and how long it still takes: a bar on a terminal, a line now and then elsewhere."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ragmesh.cli.screen import Screen

_PARTS = 10


class CountDisplay:
    """Shows how many units of work are done.

    Args:
        screen: where.
        what: the units, in a word or two.
        total: units there are.
        done: units that were done before.
    """

    def __init__(self, screen: Screen, what: str, *, total: int, done: int = 0) -> None:
        self._screen = screen
        self._what = what
        self._total = total
        self._before = self._done = done
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._done:
            self._screen.note(f"going on after {self._done:,} of {self._total:,} {self._what}")
        if self._screen.err.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left:"),
                TimeRemainingColumn(),
                console=self._screen.err,
                transient=True,
                speed_estimate_period=600,
            )
            self._task = self._bar.add_task(self._what, total=self._total, completed=self._done)
            self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """One more is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif self._done * _PARTS // self._total > (self._done - 1) * _PARTS // self._total:
            pace = (time.monotonic() - self._began) / (self._done - self._before)
            left = timedelta(seconds=round(pace * (self._total - self._done)))
            self._screen.note(f"{self._done:,} of {self._total:,} {self._what}; {left} left")
