"""The stored records: a Parquet file for each data set and reader, with what each retriever's answer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import parquet_rows

OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "votes"
_SCHEMA: Final = pa.schema(
    [
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("right", pa.list_(pa.bool_())),
        ("exact", pa.list_(pa.bool_())),
    ]
)


def write(name: str, reader: str, rows: Sequence[Mapping[str, Any]], folder: Path = OUT) -> None:
    """Write the rows of a data set and reader in the order asked; the file appears complete.

    Args:
        name: of the data set.
        reader: which reader.
        rows: ``question``, its id; ``answers``, ``right`` and ``exact``, one of each retriever.
        folder: where to.
    """
    parquet_rows.write(folder / f"{name}-{reader}.parquet", rows, _SCHEMA)


def read(name: str, reader: str, folder: Path = OUT) -> list[dict[str, Any]]:
    """Return the rows of a data set and reader; none where it was not asked."""
    return parquet_rows.read(folder / f"{name}-{reader}.parquet")
