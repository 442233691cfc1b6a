"""Tables of what a study found: for a terminal, a page or a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenmesh_core.intervals import BootstrapInterval

Cell = str | int | float | None | BootstrapInterval
"""An entry; ``nan`` and None are undefined."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    """Its name in files: lower-case, with underscores."""
    label: str
    """Its name for people, with the unit if there is one."""
    value: tuple[str, ...] | Callable[[Any], Cell] | None = None
    """How :meth:`Table.of` reads an entry: by a path of attributes and keys or a function; None reads the
    attribute of the column's name."""
    numeric: bool = True

    def read(self, row: object) -> Any:
        """Return the entry for an object; None where a step of the path is None."""
        if callable(self.value):
            return self.value(row)
        for step in self.value or (self.name,):
            if row is None:
                return None
            row = row.get(step) if isinstance(row, Mapping) else getattr(row, step)
        return row


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns."""

    name: str
    """Its name in files: lower-case, with hyphens."""
    title: str
    """Its title for people."""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    """A note for readers; may be empty."""

    @staticmethod
    def of(name: str, title: str, rows: Iterable[object], *columns: Column, note: str = "") -> Table:
        """Return a table with one row for each object, read by the columns."""
        entries = tuple(tuple(column.read(row) for column in columns) for row in rows)
        return Table(name, title, columns, entries, note)


def text(name: str, label: str, value: tuple[str, ...] | Callable[[Any], Cell] | None = None) -> Column:
    """Return a column of texts."""
    return Column(name, label, value, numeric=False)


def means(labels: Mapping[str, str]) -> tuple[Column, ...]:
    """Return columns of the estimates that objects hold as ``means``, labelled by name."""
    return tuple(Column(name, label, ("means", name)) for name, label in labels.items())


def measures(labels: Mapping[str, str]) -> tuple[Column, ...]:
    """Return columns of attributes, labelled by name."""
    return tuple(Column(name, label) for name, label in labels.items())


def alpha_shown(alpha: float | None) -> str:
    """Return a fairness dial for people."""
    return "–" if alpha is None else f"{alpha:g}"


SYSTEM = (text("system", "system"), text("alpha", "α", lambda row: alpha_shown(row.alpha)))
"""Columns of a configuration: the system and its fairness dial."""


def by_configuration(keys: Sequence[tuple[str, float | None]]) -> list[tuple[str, float | None]]:
    """Return configurations in reading order: systems as they came, each by rising α, deterministic last."""
    systems = {system: place for place, (system, _) in reversed(list(enumerate(keys)))}
    return sorted(
        dict.fromkeys(keys),
        key=lambda key: (systems[key[0]], key[1] is None, 0.0 if key[1] is None else key[1]),
    )
