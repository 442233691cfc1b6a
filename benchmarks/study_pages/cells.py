"""Cells of the pages' tables, from stored rows: values and intervals, as they stand or in per cent."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from evenmesh_lab.files.plans import described, read_plan

STUDIES: Final = Path(__file__).parents[2] / "docs/studies"

Row = dict[str, str]


def plan_of(folder: Path) -> str:
    """Return what a page says of the plan in its study's folder, which was written after the study."""
    plan = read_plan(folder / "plan.toml")
    return described(plan, {one.name: one.queries for one in plan.data})


def read(path: Path) -> list[Row]:
    """Read a stored table."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a stored table; the first row decides about the columns."""
    found = list(rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def fixed(value: str | float, digits: int, *, sign: bool = False) -> str:
    """Return a number with ``digits`` decimals and a true minus; 0 has no sign."""
    text = f"{float(value):.{digits}f}"
    if not text.strip("-0."):
        return text.lstrip("-")
    return (f"+{text}" if sign and not text.startswith("-") else text).replace("-", "−")


def percent(value: str | float, digits: int = 1, *, sign: bool = False) -> str:
    """Return a share in per cent."""
    return fixed(100 * float(value), digits, sign=sign)


def interval(row: Mapping[str, str], name: str, digits: int) -> str:
    """Return a value with its interval; where there is none, the value alone."""
    shown = fixed(row[name], digits)
    if not row[f"{name}_low"]:
        return f"{shown}, no interval"
    return f"{shown} [{fixed(row[f'{name}_low'], digits)}, {fixed(row[f'{name}_high'], digits)}]"


def percent_interval(row: Mapping[str, str], name: str, *, factor: float = 1.0, sign: bool = False) -> str:
    """Return a share with its interval in per cent; ``factor`` −1 is the difference the other way round."""
    ends = sorted(factor * float(row[f"{name}_{end}"]) for end in ("low", "high"))
    return f"{percent(factor * float(row[name]), sign=sign)} [{percent(ends[0])}, {percent(ends[1])}]"


def where(rows: Sequence[Row], **wanted: str) -> Row:
    """Return the row that has these values."""
    (found,) = (row for row in rows if all(row[name] == value for name, value in wanted.items()))
    return found
