"""Feedback as a Parquet file, to learn from elsewhere or to move to another mesh.

Columns: ``sequence`` (int64), ``recorded_at`` (timestamp, UTC), ``id``, ``task_id``, ``model_id``, ``query``,
``passage_id`` (text), ``usefulness`` (double), ``model_version``, ``collection`` (text), ``ranking`` (list of
text), ``flag`` (text; empty where it may be learned from).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from evenmesh.files.parquet import first_line, opened, row_error
from evenmesh.files.read_error import ReadError
from evenmesh.types.feedback import Feedback, StoredFeedback, from_record

_GROUP: Final = 50_000
_COLUMNS: Final = (
    "sequence",
    "recorded_at",
    "id",
    "task_id",
    "model_id",
    "query",
    "passage_id",
    "usefulness",
    "model_version",
    "collection",
    "ranking",
    "flag",
)
_AGENT: Final = ("task_id", "model_id")
_SENT: Final = [name for name in _COLUMNS if name not in ("sequence", "recorded_at", "flag")]
"""What another mesh is sent: it numbers, dates and flags items itself."""
_TYPES: Final[dict[str, pa.DataType]] = {
    "sequence": pa.int64(),
    "recorded_at": pa.timestamp("us", tz="UTC"),
    "usefulness": pa.float64(),
    "ranking": pa.list_(pa.string()),
}


def schema() -> pa.Schema:
    """Return the columns."""
    return pa.schema([pa.field(name, _TYPES.get(name, pa.string()), nullable=False) for name in _COLUMNS])


def write(path: Path, items: Iterable[StoredFeedback]) -> int:
    """Write feedback to a file, which appears only when it is complete; return the number of items.

    Raises:
        OSError: the disk.
    """
    part = path.with_name(f"{path.name}.part")
    count = 0
    try:
        with pq.ParquetWriter(part, schema(), compression="zstd", write_page_checksum=True) as writer:
            held: list[StoredFeedback] = []
            for item in items:
                held.append(item)
                if len(held) == _GROUP:
                    count += _flush(writer, held)
            count += _flush(writer, held)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return count


def read(path: Path) -> Iterator[Feedback]:
    """Yield the feedback of a file that :func:`write` wrote, in order, with the ids that it has there.

    Raises:
        ReadError: it is no whole Parquet file, lacks columns, is damaged or empty, or a row is no
            feedback.
    """
    rows = 0
    with opened(path) as file:
        if lacking := [name for name in _SENT if name not in file.schema_arrow.names]:
            raise ReadError(
                path, None, f"was not written by `evenmesh feedback export`: lacks {lacking[0]!r}"
            )
        try:
            for batch in file.iter_batches(columns=_SENT):
                for row in batch.to_pylist():
                    rows += 1
                    yield _item(path, rows, row)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
            raise ReadError(path, None, f"is damaged ({first_line(exc)})") from exc
    if not rows:
        raise ReadError(path, None, "has no feedback")


def _item(path: Path, number: int, row: dict[str, Any]) -> Feedback:
    agent = {name: row.pop(name) for name in _AGENT}
    try:
        return from_record({**row, "agent": agent})
    except ValueError as exc:
        raise row_error(path, number, str(exc)) from exc


def _flush(writer: pq.ParquetWriter, held: list[StoredFeedback]) -> int:
    rows = [
        {
            "sequence": one.sequence,
            "recorded_at": one.recorded_at,
            "id": one.feedback.id,
            "task_id": one.feedback.agent.task_id,
            "model_id": one.feedback.agent.model_id,
            "query": one.feedback.query,
            "passage_id": one.feedback.passage_id,
            "usefulness": one.feedback.usefulness,
            "model_version": one.feedback.model_version,
            "collection": one.feedback.collection,
            "ranking": list(one.feedback.ranking),
            "flag": one.flag,
        }
        for one in held
    ]
    if rows:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema()))
    held.clear()
    return len(rows)
