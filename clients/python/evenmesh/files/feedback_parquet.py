"""Feedback as a Parquet file, to learn from elsewhere.

Columns: ``sequence`` (int64), ``recorded_at`` (timestamp, UTC), ``id``, ``task_id``, ``model_id``, ``query``,
``passage_id`` (text), ``usefulness`` (double), ``model_version``, ``collection`` (text), ``ranking`` (list of
text), ``flag`` (text; empty where it may be learned from).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from evenmesh.types.feedback import StoredFeedback

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
