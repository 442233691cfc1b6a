"""Utility labels: what passages alone gained, and files of labels made of that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from raglab.files.failure import FileError
from raglab.files.records import GainRecord, read


def read_gains(path: Path) -> list[GainRecord]:
    """The gains of a file of JSON lines or of Parquet.

    Raises:
        FileError: a record that is none, or a passage that a query has twice.
    """
    found = []
    seen: set[tuple[str, str]] = set()
    for number, record in read(path, GainRecord):
        key = (record.query_id, record.passage_id)
        if key in seen:
            raise FileError(path, number, f"has {record.passage_id!r} for query {record.query_id!r} again")
        seen.add(key)
        found.append(record)
    return found


def blank_ids(gains: Iterable[GainRecord]) -> list[str]:
    """Ids with white space, which the columns of TREC cannot hold, each once."""
    ids = dict.fromkeys(name for one in gains for name in (one.query_id, one.passage_id))
    return [name for name in ids if len(name.split()) != 1]


def write_qrels(gains: Iterable[GainRecord], path: Path) -> None:
    """Writes labels as TREC qrels: useful passages 1, others 0; what is not known is left out.

    Raises:
        ValueError: an id has white space in it.
        OSError: the file cannot be written.
    """
    lines = []
    for one in gains:
        if blank_ids([one]):
            raise ValueError(f"query {one.query_id!r}, passage {one.passage_id!r}: white space in an id")
        if one.useful is not None:
            lines.append(f"{one.query_id} 0 {one.passage_id} {int(one.useful)}\n")
    _replaced(path, lambda target: target.write_text("".join(lines), encoding="utf-8"))


def write_labels(gains: Sequence[GainRecord], path: Path) -> None:
    """Writes labels as Parquet with the columns of a label record; what is not known is left out.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = [one for one in gains if one.useful is not None]
    table = pa.table(
        {
            "query_id": pa.array([one.query_id for one in known], pa.string()),
            "passage_id": pa.array([one.passage_id for one in known], pa.string()),
            "grade": pa.array([float(bool(one.useful)) for one in known], pa.float64()),
            "provider": pa.array([one.provider for one in known], pa.string()),
        }
    )
    _replaced(path, lambda target: pq.write_table(table, target))


def _replaced(path: Path, write: Callable[[Path], object]) -> None:
    """The file is there whole, or as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
