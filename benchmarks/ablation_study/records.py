"""The stored records: a Parquet file for each variant and seed, with what became of every question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import parquet_rows

OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "ablations"
_SCHEMA: Final = pa.schema(
    [
        ("data", pa.dictionary(pa.int8(), pa.string())),
        ("question", pa.string()),
        ("found", pa.int8()),
        ("ranked", pa.int8()),
        ("found_exact", pa.bool_()),
        ("found_f1", pa.float32()),
        ("ranked_exact", pa.bool_()),
        ("ranked_f1", pa.float32()),
    ]
)


def path(variant: str, seed: int, folder: Path = OUT) -> Path:
    """Return the file of a variant and seed."""
    return folder / f"{variant}-{seed}.parquet"


def write(variant: str, seed: int, rows: Iterable[Mapping[str, Any]], folder: Path = OUT) -> None:
    """Write the rows of a variant and seed; the file appears complete.

    Args:
        variant: which model.
        seed: of its training.
        rows: ``data`` and ``question``, its id; ``found`` and ``ranked``, the place of the first gold passage
            among those that BM25 found, in BM25's order and in the model's, from 0, or -1; and ``…_exact``
            and ``…_f1`` of the answer from the first five in either order, None for a model that only ranks.
        folder: where to.
    """
    parquet_rows.write(path(variant, seed, folder), rows, _SCHEMA)


def read(variant: str, seed: int, folder: Path = OUT) -> list[dict[str, Any]]:
    """Return the rows of a variant and seed; none where it was not asked."""
    return parquet_rows.read(path(variant, seed, folder))
