"""Rows of a study in a Parquet file, compressed as much as it goes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none where it is not there."""
    return pq.read_table(path).to_pylist() if path.is_file() else []


def write(path: Path, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write rows; the file appears complete."""
    beside = path.with_suffix(f".{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows), schema)
    pq.write_table(table, beside, compression="zstd", compression_level=19)
    beside.replace(path)
