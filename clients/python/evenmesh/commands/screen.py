"""Write output: styled on a terminal, plain lines anywhere else."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PLAIN_WIDTH: Final = 240
_BIDI: Final = r"\u202a-\u202e\u2066-\u2069"
_CONTROL: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}]")


class Screen:
    """Writes to standard output and standard error of one command."""

    def __init__(self) -> None:
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def fancy(self) -> bool:
        """Return whether standard output is a terminal."""
        return self.out.is_terminal

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line of output, without control characters."""
        self.out.print(Text(clean(text), style=style), soft_wrap=True)

    def note(self, text: str, style: str = "dim") -> None:
        """Write one line to standard error."""
        self.err.print(Text(clean(text), style=style), soft_wrap=True)

    def fail(self, message: str) -> None:
        """Write one line that says why the command failed."""
        label = Text("evenmesh: ", style="bold red")
        self.err.print(label + Text(" ".join(clean(message).split())), soft_wrap=True)

    def json(self, value: object) -> None:
        """Write a value as one line of JSON, in which control characters are escaped."""
        line = json.dumps(value, default=_plain, ensure_ascii=False)
        try:
            line.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # the terminal has another encoding, or a file's name is no text
            line = json.dumps(value, default=_plain)
        sys.stdout.write(_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line) + "\n")
        sys.stdout.flush()

    def event(self, event: object) -> None:
        """Write an event, a dataclass, as one line of JSON that begins with its kind."""
        values = {field.name: getattr(event, field.name) for field in fields(event)}  # type: ignore[arg-type]
        self.json({"event": type(event).__name__.lower(), **values})

    def answer(self, value: object, text: str, *, as_json: bool) -> None:
        """Write what a command did: as JSON, or in a line."""
        if as_json:
            self.json(value)
        else:
            self.line(text)

    def table(self, *columns: str, right: tuple[str, ...] = (), title: str = "") -> Table:
        """Return an empty table; columns in ``right`` hold numbers."""
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
        """Return a bar for a share from 0 to 1."""
        full, empty = ("#", ".") if self.out.options.ascii_only else ("█", "░")
        filled = min(width, max(0, round(share * width)))
        return Text(full * filled, style="cyan") + Text(empty * (width - filled), style="dim")


def clean(text: str) -> str:
    """Return the text without control characters, which could steer a terminal or turn the order of a line.

    Tabs and line ends stay.
    """
    return _CONTROL.sub("�", text)


class _CleanConsole(Console):
    """Writes cells of tables without control characters too."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(clean(text), **options)


def _console(*, stderr: bool) -> Console:
    # With emoji, a run such as exp:100:a would be shown under another name.
    console = _CleanConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # Without a window lines are not wrapped.
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
