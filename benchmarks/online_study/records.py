"""The stored records: what each way of ranking shows an agent, query by query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import parquet_rows

OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "online"
FROZEN: Final = "frozen"
ALWAYS: Final = "always"
JUDGED_ALL: Final = "fusion-of-20"
"""Fusions of agents that report on all 20 candidates."""
BY_ORDER: Final = "by-order"
"""Fusions by the rule that was tried first: commit 9611b343 replayed them, as ``fusion``."""
_ROWS: Final = pa.schema(
    [
        ("agent", pa.dictionary(pa.int8(), pa.string())),
        ("seed", pa.int8()),
        ("position", pa.int16()),
        ("query", pa.string()),
        ("utility", pa.float32()),
        ("rounds", pa.int8()),
    ]
)


def path(system: str, folder: Path = OUT) -> Path:
    """Return the file of a system: :data:`FROZEN`, what is learned, or :data:`ALWAYS`."""
    return folder / f"{system}.parquet"


def read(system: str, folder: Path = OUT) -> list[dict[str, Any]]:
    """Return the rows of a system; none where it was not replayed."""
    return parquet_rows.read(path(system, folder))


def add(system: str, rows: Iterable[Mapping[str, Any]], folder: Path = OUT) -> None:
    """Add the rows of one agent and seed, in place of those that are there."""
    new = list(rows)
    keys = {(row["agent"], row["seed"]) for row in new}
    kept = [row for row in read(system, folder) if (row["agent"], row["seed"]) not in keys]
    ordered = sorted([*kept, *new], key=lambda row: (row["agent"], row["seed"], row["position"]))
    parquet_rows.write(path(system, folder), ordered, _ROWS)
