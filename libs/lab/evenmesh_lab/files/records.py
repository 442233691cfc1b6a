"""Records of JSON lines and of Parquet files: their columns and bounds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import decoded, raw_lines

Id = Annotated[str, Field(min_length=1)]

_BATCH_ROWS: Final = 4_096
_QUERY_ID: Final = re.compile(rb'"query_id"\s*:\s*"((?:[^"\\]|\\.)*)"')


class Record(BaseModel):
    """One line or row. Unknown columns are errors: they may be misspelt known ones."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True
    )


class AuditRecord(Record):
    """One ranking of one query, and its answer."""

    query_id: Id
    ranking: Annotated[list[Id], Field(min_length=1)]
    """Passage ids, best first."""
    system: str = ""
    """The origin of the ranking: a retriever, a generator, or both."""
    alpha: Annotated[float | None, Field(ge=0, le=100)] = None
    """Fairness dial of the sampling; None for a deterministic ranking."""
    sample: Annotated[int | None, Field(ge=0)] = None
    """Index of the sample."""
    answer: str | None = None
    """The answer generated from it."""
    references: list[str] | None = None
    """Right answers; those of a query's first record that has some count for all its records."""
    utility: Annotated[float | None, Field(ge=0)] = None
    """Utility of the answer, where it is known instead of references."""
    log_probability: Annotated[float | None, Field(le=0)] = None
    """Natural logarithm of the ranking's probability."""
    pool: list[Id] | None = None
    """Ids of the passages it was drawn from; those of a query's first record of a system that has some count
    for all its records of that system."""


class LabelRecord(Record):
    """How useful one passage is for one query."""

    query_id: Id
    passage_id: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("passage_id", "doc_id"))]
    grade: Annotated[
        float,
        AfterValidator(lambda grade: max(0.0, grade)),
        Field(validation_alias=AliasChoices("grade", "relevance")),
    ]
    """0 is not useful, and so is a negative grade (junk), as in TREC's judgements."""
    provider: str | None = None
    group: str | None = None


class GainRecord(Record):
    """The effect of one passage alone on the answer to one query (Kim & Diaz 2025, algorithm 1)."""

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
    """Index of the sample, where a question was asked several times."""


class PassageRecord(Record):
    """A passage that comes with a query, as an item of a user's profile does."""

    id: Id
    text: str
    title: str = ""
    attributes: dict[str, str] = Field(default_factory=dict)


class QueryRecord(Record):
    """A question with its known answers and passages."""

    query_id: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("query_id", "id"))]
    question: Annotated[str, Field(min_length=1)]
    references: Annotated[list[str] | None, Field(validation_alias=AliasChoices("references", "answers"))] = (
        None
    )
    """Right answers."""
    passages: Annotated[list[PassageRecord] | None, Field(min_length=1)] = None
    """Passages to answer from instead of a collection."""
    search: Annotated[str | None, Field(min_length=1)] = None
    """The search text, where it is not the question."""


R = TypeVar("R", bound=Record)


def read(path: Path, kind: type[R]) -> Iterator[tuple[int, R]]:
    """Yield the records of a file of JSON lines or Parquet (``*.parquet``), with their lines (rows) from 1.

    Raises:
        FileError: an invalid record, with its line or row.
    """
    if is_parquet(path):
        for number, row in rows(path):
            # In a table a missing column equals one without a value.
            present = {name: value for name, value in row.items() if value is not None}
            try:
                yield number, kind.model_validate(present)
            except ValidationError as exc:
                raise FileError(path, number, f"(row) {first_error(exc, kind)}") from exc
        return
    for number, raw in raw_lines(path):
        yield number, parsed(path, number, decoded(path, number, raw), kind)


def parsed(path: Path, number: int, line: str, kind: type[R]) -> R:
    """Return the record of one line.

    Raises:
        FileError: the record is invalid.
    """
    try:
        return kind.model_validate_json(line)
    except ValidationError as exc:
        raise FileError(path, number, first_error(exc, kind)) from exc


def query_ids(path: Path) -> Iterator[bytes | str | None]:
    """Yield the query of each record without parsing the rest; None where only parsing could tell."""
    if is_parquet(path):
        for _, row in rows(path, ["query_id"]):
            yield row.get("query_id")
        return
    for _, raw in raw_lines(path):
        found = _QUERY_ID.search(raw)
        # An id with an escape may be written otherwise elsewhere in the file.
        yield found.group(1) if found and b"\\" not in found.group(1) else None


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file next to its place, then move it there: it is complete, or as it was before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_parquet(kind: type[R], records: Iterable[R], path: Path, *, without: str = "") -> None:
    """Write records as Parquet, a column for each field but the one ``without``; replace the file."""
    import pyarrow
    import pyarrow.parquet

    arrow: Any = pyarrow
    fields = {name: info.annotation for name, info in kind.model_fields.items() if name != without}
    schema = arrow.schema([(name, _arrow_type(hint)) for name, hint in fields.items()])
    table = arrow.Table.from_pylist([one.model_dump() for one in records], schema=schema)
    replace_file(path, lambda target: pyarrow.parquet.write_table(table, target))


def _arrow_type(hint: Any) -> Any:
    """Return the type of the column of a field that is a text, a number, a truth value or a list of texts."""
    import pyarrow as arrow

    if get_origin(hint) is list:
        return arrow.list_(arrow.string())
    plain = next(one for one in (get_args(hint) or (hint,)) if one is not type(None))
    return {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}[plain]


def is_parquet(path: Path) -> bool:
    """Return whether a file's name says that it is Parquet."""
    return path.suffix == ".parquet"


def is_json_lines(path: Path) -> bool:
    """Return whether a file's name says that it holds JSON lines, gzip or not."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix in (".jsonl", ".ndjson", ".json")


def rows(path: Path, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file with their numbers from 1; a map is a list of pairs.

    Args:
        path: the file.
        columns: those to read, where the file has them; None for all.

    Raises:
        FileError: it is not there, empty or damaged.
    """
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


def first_error(exc: ValidationError, kind: type[Record]) -> str:
    """Return the first error of a record in words."""
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
