"""Studies as JSON and as CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.cells import inert
from evenmesh_lab.studies import Study
from evenmesh_lab.studies.tables import Cell, Table


def as_json(study: Study) -> str:
    """Return a study as one JSON object; undefined values are ``null``."""
    kind = type(study).__name__.removesuffix("Study").lower()
    return json.dumps({"study": kind, **_plain(study)}, ensure_ascii=False, allow_nan=False)


def write_csv(tables: tuple[Table, ...], path: Path) -> list[Path]:
    """Write tables: the last, which has the rows of each query, to ``path``, each other beside it with its
    name.

    A value with an interval takes four columns: the value, ``_low``, ``_high`` and ``_undefined``. What is
    undefined is empty.

    Returns:
        The files written.

    Raises:
        OSError: one cannot be written.
    """
    written = []
    for table in tables:
        target = path if table is tables[-1] else path.with_name(f"{path.stem}-{table.name}{path.suffix}")
        with target.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            columns = ([row[place] for row in table.rows] for place in range(len(table.columns)))
            wide = [any(isinstance(cell, BootstrapInterval) for cell in column) for column in columns]
            header: list[str] = []
            for column, spread in zip(table.columns, wide, strict=True):
                header.append(column.name)
                if spread:
                    header.extend(f"{column.name}{ending}" for ending in ("_low", "_high", "_undefined"))
            writer.writerow(map(inert, header))
            for row in table.rows:
                cells: list[str | int | float] = []
                for cell, spread in zip(row, wide, strict=True):
                    cells.extend(_cells(cell, spread))
                writer.writerow(map(inert, cells))
        written.append(target)
    return written


def _cells(cell: Cell, spread: bool) -> list[str | int | float]:
    if isinstance(cell, BootstrapInterval):
        return [_defined(cell.value), _defined(cell.low), _defined(cell.high), cell.undefined]
    value = _defined(cell)
    return [value, "", "", ""] if spread else [value]


def _defined(cell: str | int | float | None) -> str | int | float:
    if cell is None or cell == "–":
        return ""
    return "" if isinstance(cell, float) and math.isnan(cell) else cell


def _plain(value: object) -> Any:
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
