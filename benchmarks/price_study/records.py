"""The stored records, Parquet files of a data set: what each dial shows, the contexts, each reader's answers.

A context is a number within its question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import parquet_rows
from benchmarks.price_study.rankings import Context, Shown

OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "price"
_QUESTION: Final = ("question", pa.dictionary(pa.int32(), pa.string()))
_SHOWN: Final = pa.schema(
    [
        _QUESTION,
        ("stage", pa.string()),
        ("dial", pa.string()),
        ("disparity", pa.float32()),
        ("relevance", pa.float32()),
        ("contexts", pa.list_(pa.int32())),
    ]
)
_CONTEXTS: Final = pa.schema([_QUESTION, ("context", pa.int32()), ("passages", pa.list_(pa.string()))])
_ANSWERS: Final = pa.schema(
    [
        _QUESTION,
        ("context", pa.int32()),
        ("answer", pa.string()),
        ("f1", pa.float32()),
        ("exact", pa.float32()),
    ]
)


def write_rankings(name: str, found: Mapping[str, Sequence[Shown]], folder: Path = OUT) -> None:
    """Write what the dials show for each question of a data set, and its contexts."""
    rows, contexts = [], []
    for question, some in found.items():
        numbers: dict[Context, int] = {}
        for one in some:
            places = [numbers.setdefault(context, len(numbers)) for context in one.contexts]
            rows.append({**asdict(one), "question": question, "contexts": places})
        contexts += [
            {"question": question, "context": number, "passages": passages}
            for passages, number in numbers.items()
        ]
    parquet_rows.write(folder / f"{name}-shown.parquet", rows, _SHOWN)
    parquet_rows.write(folder / f"{name}-contexts.parquet", contexts, _CONTEXTS)


def read_shown(name: str, folder: Path = OUT) -> list[dict[str, Any]]:
    """Return what the dials show, a row for each question, first stage and dial."""
    return parquet_rows.read(folder / f"{name}-shown.parquet")


def read_contexts(name: str, folder: Path = OUT) -> dict[str, list[Context]]:
    """Return the contexts of each question, by number."""
    found: dict[str, list[Context]] = defaultdict(list)
    for row in parquet_rows.read(folder / f"{name}-contexts.parquet"):
        found[row["question"]].append(tuple(row["passages"]))
    return found


def write_answers(name: str, reader: str, rows: Iterable[Mapping[str, Any]], folder: Path = OUT) -> None:
    """Write all answers of a reader: ``question``, ``context``, ``answer``, ``f1``, ``exact``."""
    parquet_rows.write(folder / f"{name}-{reader}.parquet", rows, _ANSWERS)


def read_answers(name: str, reader: str, folder: Path = OUT) -> list[dict[str, Any]]:
    """Return all answers of a reader; none where it was not asked."""
    return parquet_rows.read(folder / f"{name}-{reader}.parquet")
