"""Utility labels: what passages alone gained, and files of labels made of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.records import GainRecord, LabelRecord, read, replace_file, write_parquet


def read_gains(path: Path) -> list[GainRecord]:
    """Read the gains of a file of JSON lines or Parquet.

    Raises:
        FileError: an invalid record, or a passage that a query has twice.
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
    """Return ids with white space, which TREC columns cannot hold, each once."""
    ids = dict.fromkeys(name for one in gains for name in (one.query_id, one.passage_id))
    return [name for name in ids if len(name.split()) != 1]


def write_qrels(gains: Iterable[GainRecord], path: Path) -> None:
    """Write labels as TREC qrels: useful passages 1, others 0; unknown ones are omitted.

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
    replace_file(path, lambda target: target.write_text("".join(lines), encoding="utf-8"))


def write_labels(gains: Sequence[GainRecord], path: Path) -> None:
    """Write labels as Parquet with the columns of a label record; unknown ones are omitted.

    Raises:
        OSError: the file cannot be written.
    """
    labels = (
        LabelRecord(
            query_id=one.query_id, passage_id=one.passage_id, grade=float(one.useful), provider=one.provider
        )
        for one in gains
        if one.useful is not None
    )
    write_parquet(LabelRecord, labels, path, without="group")
