"""What a study found, as tables: for a terminal, a page or a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragcore.intervals import BootstrapInterval

Cell = str | int | float | None | BootstrapInterval
"""An entry; ``nan`` and None are undefined."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    name: str
    """Its name in files: lower-case, with underscores."""
    label: str
    """Its name for people, with the unit if there is one."""
    numeric: bool = True


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
    """What a reader has to know; empty if nothing."""


def text(name: str, label: str) -> Column:
    """A column of texts."""
    return Column(name, label, numeric=False)


def alpha_shown(alpha: float | None) -> str:
    """A fairness dial as people read it."""
    return "–" if alpha is None else f"{alpha:g}"


def by_configuration(keys: Sequence[tuple[str, float | None]]) -> list[tuple[str, float | None]]:
    """Configurations in reading order: systems as they came, each by rising α, the deterministic last."""
    systems = {system: place for place, (system, _) in reversed(list(enumerate(keys)))}
    return sorted(
        dict.fromkeys(keys),
        key=lambda key: (systems[key[0]], key[1] is None, 0.0 if key[1] is None else key[1]),
    )
