"""Records of JSON lines and of Parquet files: what their columns are, and what may stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from raglab.files.failure import FileError
from raglab.files.lines import decoded, raw_lines

Id = Annotated[str, Field(min_length=1)]

_BATCH_ROWS: Final = 4_096
_QUERY_ID: Final = re.compile(rb'"query_id"\s*:\s*"((?:[^"\\]|\\.)*)"')


class Record(BaseModel):
    """One line or row. Columns that are not named here are refused: one of them may be a misspelt other."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True
    )


class AuditRecord(Record):
    """One ranking that one query was given, and what came of it."""

    query_id: Id
    ranking: Annotated[list[Id], Field(min_length=1)]
    """Passage ids, best first."""
    system: str = ""
    """What made the ranking: a retriever, a generator, or both."""
    alpha: Annotated[float | None, Field(ge=0, le=100)] = None
    """Fairness dial of the sampling; None for a deterministic ranking."""
    sample: Annotated[int | None, Field(ge=0)] = None
    """Which of the samples it is."""
    answer: str | None = None
    """The answer generated from it."""
    references: list[str] | None = None
    """Right answers; those of a query's first record that has some count for all its records."""
    utility: Annotated[float | None, Field(ge=0)] = None
    """How good the answer is, where that is known instead of references."""
    log_probability: Annotated[float | None, Field(le=0)] = None
    """Natural logarithm of the ranking's probability."""
    pool: list[Id] | None = None
    """Ids of the passages it was drawn from; those of a query's first record of a system that has some count
    for all its records of that system."""


class LabelRecord(Record):
    """How useful one passage is for one query."""

    query_id: Id
    passage_id: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("passage_id", "doc_id"))]
    grade: Annotated[float, Field(ge=0, validation_alias=AliasChoices("grade", "relevance"))]
    """0 is not useful."""
    provider: str | None = None
    group: str | None = None


class GainRecord(Record):
    """What one passage alone did for the answer to one query (fair-rag, algorithm 1)."""

    query_id: Id
    passage_id: Id
    baseline: Annotated[float, Field(ge=0)]
    """Utility of the answer without any passage."""
    utility: Annotated[float | None, Field(ge=0)] = None
    """Utility of the answer with this passage alone; None where there is none."""
    answer: str | None = None
    """That answer."""
    provider: str | None = None

    @property
    def useful(self) -> bool | None:
        """Whether the passage gains anything, δ > 0; None where that is not known."""
        return None if self.utility is None else self.utility > self.baseline


class EnsembleRecord(Record):
    """The answer one retriever led to."""

    query_id: Id
    retriever: Id
    answer: str
    question: str = ""
    references: list[str] | None = None
    """Right answers; those of a question's first record that has some count for all its records."""
    correct: Annotated[float | None, Field(ge=0, le=1)] = None
    """How correct the answer is, where that is known instead of references."""
    context: str | None = None
    """The passages the retriever gave, in one text."""
    sample: Annotated[int | None, Field(ge=0)] = None
    """Which of the samples it is, where a question was asked several times."""


class PassageRecord(Record):
    """A passage that comes with a query, as an item of a user's profile does."""

    id: Id
    text: str
    title: str = ""
    attributes: dict[str, str] = Field(default_factory=dict)


class QueryRecord(Record):
    """A question, and what is known of it."""

    query_id: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("query_id", "id"))]
    question: Annotated[str, Field(min_length=1)]
    references: Annotated[list[str] | None, Field(validation_alias=AliasChoices("references", "answers"))] = (
        None
    )
    """Right answers."""
    passages: Annotated[list[PassageRecord] | None, Field(min_length=1)] = None
    """What it is to be answered from, instead of a collection."""
    search: Annotated[str | None, Field(min_length=1)] = None
    """What is searched for, where that is not the question."""


R = TypeVar("R", bound=Record)


def read(path: Path, kind: type[R]) -> Iterator[tuple[int, R]]:
    """The records of a file of JSON lines or of Parquet (``*.parquet``), with their lines (rows), from 1.

    Raises:
        FileError: at the first that is none, with its line or row.
    """
    if is_parquet(path):
        for number, row in _rows(path, None):
            # A column that is left out and one that holds nothing are the same in a table.
            present = {name: value for name, value in row.items() if value is not None}
            try:
                yield number, kind.model_validate(present)
            except ValidationError as exc:
                raise FileError(path, number, f"(row) {told(exc, kind)}") from exc
        return
    for number, raw in raw_lines(path):
        yield number, parsed(path, number, decoded(path, number, raw), kind)


def parsed(path: Path, number: int, line: str, kind: type[R]) -> R:
    """The record of one line.

    Raises:
        FileError: it is none.
    """
    try:
        return kind.model_validate_json(line)
    except ValidationError as exc:
        raise FileError(path, number, told(exc, kind)) from exc


def query_ids(path: Path) -> Iterator[bytes | str | None]:
    """The query of each record without reading the rest of it; None where that takes reading it all."""
    if is_parquet(path):
        for _, row in _rows(path, ["query_id"]):
            yield row.get("query_id")
        return
    for _, raw in raw_lines(path):
        found = _QUERY_ID.search(raw)
        yield found.group(1) if found else None


def is_parquet(path: Path) -> bool:
    """Whether a file's name says that it is Parquet."""
    return path.suffix == ".parquet"


def is_json_lines(path: Path) -> bool:
    """Whether a file's name says that it holds JSON lines, gzip or not."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix in (".jsonl", ".ndjson", ".json")


def _rows(path: Path, columns: list[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if file.metadata.num_rows == 0:
                raise FileError(path, None, "is empty")
            if columns is not None:
                columns = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError) as exc:
        raise FileError(path, number + 1 if number else None, f"is not readable as Parquet ({exc})") from exc
    except OSError as exc:
        raise FileError(path, None, exc.strerror or str(exc)) from exc


def told(exc: ValidationError, kind: type[Record]) -> str:
    """The first thing wrong with a record, in words."""
    first = exc.errors(include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    known = ", ".join(kind.model_fields)
    match first["type"]:
        case "json_invalid":
            return f"is not JSON: {first['ctx']['error']}"
        case "missing":
            return f"has no {place!r}; columns: {known}"
        case "extra_forbidden":
            return f"has the unknown column {place!r}; columns: {known}"
        case "model_type" | "model_attributes_type":
            return "must be a JSON object"
        case _:
            return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}"
