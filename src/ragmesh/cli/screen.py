"""What the command line writes on: beautiful on a terminal, plain lines anywhere else."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PLAIN_WIDTH: Final = 240
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    """Standard output and standard error of one command."""

    def __init__(self) -> None:
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def fancy(self) -> bool:
        """Whether a person watches standard output."""
        return self.out.is_terminal

    def line(self, text: str = "", style: str = "") -> None:
        """One line of output; text from elsewhere is safe in it."""
        self.out.print(Text(clean(text), style=style), soft_wrap=True)

    def note(self, text: str, style: str = "dim") -> None:
        """One line beside the output, on standard error."""
        self.err.print(Text(clean(text), style=style), soft_wrap=True)

    def fail(self, message: str) -> None:
        """One line that says why the command failed."""
        label = Text("ragmesh: ", style="bold red")
        self.err.print(label + Text(" ".join(clean(message).split())), soft_wrap=True)

    def json(self, value: object) -> None:
        """One line of JSON."""
        sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def table(self, *columns: str, right: tuple[str, ...] = (), title: str = "") -> Table:
        """An empty table; columns in ``right`` hold numbers."""
        table = Table(
            box=SIMPLE_HEAD if self.fancy else None,
            title=title or None,
            title_justify="left",
            title_style="bold",
            header_style="bold",
            pad_edge=False,
        )
        for column in columns:
            numeric = column in right
            table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric)
        return table

    def bar(self, share: float, width: int = 24) -> Text:
        """A bar for a share from 0 to 1."""
        full, empty = ("#", ".") if self.out.options.ascii_only else ("█", "░")
        filled = min(width, max(0, round(share * width)))
        return Text(full * filled, style="cyan") + Text(empty * (width - filled), style="dim")


def clean(text: str) -> str:
    """Text from elsewhere without what would steer a terminal; tabs and ends of lines stay."""
    return _CONTROL.sub("�", text)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal:
        # Nobody's window: lines are as long as they are.
        console.width = _PLAIN_WIDTH
    return console


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
