"""Questions, with all that is wrong with them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import each_line
from evenmesh_lab.files.records import PassageRecord, QueryRecord, is_parquet, parsed, read


@dataclass(frozen=True, slots=True)
class Query:
    """One question; ``line`` is where it stands in its file, from 1."""

    query_id: str
    question: str
    references: tuple[str, ...]
    passages: tuple[PassageRecord, ...]
    """Passages to answer from instead of a collection; empty for a collection."""
    line: int
    search: str | None = None
    """The search text; None for the question."""


@dataclass(frozen=True, slots=True)
class Queries:
    """The questions of a file in its order, each id once, and what is wrong with the file."""

    path: Path
    queries: tuple[Query, ...]
    problems: tuple[FileError, ...] = ()


def read_queries(path: Path) -> Queries:
    """Read the questions of a file of JSON lines or Parquet; report every problem, never fail.

    A problem is an invalid record, a repeated id, or a passage that a question has twice.
    A file that cannot be read is one problem.
    """
    found: dict[str, Query] = {}
    problems: list[FileError] = []
    try:
        for number, record in _records(path, problems):
            if record.query_id in found:
                first = found[record.query_id].line
                problems.append(
                    FileError(path, number, f"repeats the query {record.query_id!r} of line {first}")
                )
                continue
            passages = tuple(record.passages or ())
            if twice := _twice([one.id for one in passages]):
                problems.append(FileError(path, number, f"has the passage {twice!r} twice"))
            found[record.query_id] = Query(
                record.query_id,
                record.question,
                tuple(record.references or ()),
                passages,
                number,
                record.search,
            )
    except FileError as error:
        problems.append(error)
    problems.sort(key=lambda problem: problem.line or 0)
    return Queries(path, tuple(found.values()), tuple(problems))


def _records(path: Path, problems: list[FileError]) -> list[tuple[int, QueryRecord]]:
    if is_parquet(path):
        return list(read(path, QueryRecord))
    return list(each_line(path, partial(parsed, kind=QueryRecord), problems))


def _twice(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
