"""Documents of data sets as passages: each is one passage with the id that its judgements name."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from evenmesh.types.passage import Passage
from evenmesh.wire.checks import MAX_ATTRIBUTE_BYTES
from evenmesh_documents.attribution import cut, one_line
from evenmesh_documents.data_sets.address import DataSetAddress
from evenmesh_documents.data_sets.opening import TEXT, DataSet, DataSetError, Row, bounded, opened
from evenmesh_documents.document import UnreadableError
from evenmesh_documents.origins.found import Found, PathError

ID: Final = ("id", "_id", "doc_id", "docid", "docno", "passage_id", "pid", "corpus-id", "corpus_id")
TITLE: Final = ("title", "headline")


def find_data_set(path: str) -> Found:
    """Return a data set as what its passages are read from.

    Raises:
        PathError: it cannot be opened.
    """
    try:
        address = DataSetAddress.parse(path)
        data_set = opened(address)
    except ValueError as exc:
        raise PathError(f"{path}: {exc}") from exc
    return Found(Path(path), path, records=partial(_passages, data_set, address.columns))


def _passages(data_set: DataSet, columns: Mapping[str, str], most: int) -> Iterator[Passage]:
    """Yield a passage for each document.

    Raises:
        UnreadableError: the data set cannot be read, has too many documents, or no column of texts.
    """
    names: tuple[str, str, str] | None = None
    try:
        for number, row in enumerate(bounded(data_set, "docs", most)):
            if names is None:
                names = _names(row, columns)
            id_, title, text = names
            rest = {key: value for key, value in row.items() if key not in names}
            yield Passage(
                name_in(row, id_) if id_ else f"row-{number}",
                text_in(row, text),
                text_in(row, title) if title else "",
                _attributes(rest),
            )
    except DataSetError as exc:
        raise UnreadableError(str(exc)) from exc


def _names(row: Row, columns: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the columns of id, title and text; empty for an id or a title that there is not."""
    return (
        column_of(row, columns, "id", ID, required=False),
        column_of(row, columns, "title", TITLE, required=False),
        column_of(row, columns, "text", TEXT),
    )


def column_of(
    row: Row, columns: Mapping[str, str], part: str, usual: tuple[str, ...], *, required: bool = True
) -> str:
    """Return the name of a part's column: the one that is stated, or the first usual one that there is.

    Raises:
        DataSetError: there is none, and it is stated or required.
    """
    if (stated := columns.get(part)) is not None:
        if stated not in row:
            raise DataSetError(f"has no column {stated!r}; there are {', '.join(row)}")
        return stated
    found = next((one for one in usual if one in row), "")
    if not found and required:
        raise DataSetError(f"has no column for {part}: add ?{part}= and one of {', '.join(row)}")
    return found


def text_in(row: Row, column: str) -> str:
    """Return the text of a column; empty for a missing one.

    Raises:
        DataSetError: it is no text.
    """
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise DataSetError(f"the column {column!r} holds {type(value).__name__}, not texts")
    return value if value and value.strip() else ""


def name_in(row: Row, column: str) -> str:
    """Return the id in a column: a text or a whole number.

    Raises:
        DataSetError: it is neither.
    """
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataSetError(f"the column {column!r} holds {type(value).__name__}, not ids")
    return str(value)


def _attributes(row: Row) -> dict[str, str]:
    """Return texts, numbers and truth values as attributes; other values cannot be one."""
    return {
        key: cut(key, one_line(str(value)))
        for key, value in row.items()
        if isinstance(value, str | int | float)
        and one_line(str(value))
        and len(key.encode()) < MAX_ATTRIBUTE_BYTES // 2
    }
