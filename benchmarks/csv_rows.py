"""Rows of a study in a CSV file, with as many digits as its tables need."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none where it is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, which may have different columns; the file appears complete."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    beside = path.with_suffix(f".{os.getpid()}")
    with beside.open("w", encoding="utf-8", newline="") as file:
        to = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        to.writeheader()
        to.writerows({column: cell(value) for column, value in row.items()} for row in rows)
    beside.replace(path)


def cell(value: object) -> str:
    """Return a value as it is written: a fraction with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
