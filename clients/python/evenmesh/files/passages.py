"""Read passage files: JSON lines of this project, and ``corpus.jsonl`` of BEIR; plain or gzip; Parquet.

A line of ours is ``{"id", "title", "text", "attributes"}``: ``id`` is required, ``title`` or ``text`` not
empty, ``attributes`` a flat object of strings. A line of BEIR (Thakur et al., 2021) is ``{"_id", "title",
"text", "metadata"}``; its metadata is free-form, so strings become attributes, numbers and booleans their
JSON text, and lists, objects and nulls, which an attribute cannot hold, are left out. Other members of a line
are not read; who reads a file can have them named. Blank lines are skipped. Parquet files are those of
:mod:`evenmesh.files.parquet`.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from evenmesh.files.read_error import ReadError
from evenmesh.types.passage import Passage
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField

MAX_LINE_BYTES: Final = 1 << 20
"""Longest line that is read; more than ten times what the largest passage needs."""

_MEMBERS: Final = frozenset({"id", "title", "text", "attributes"})
_BEIR_MEMBERS: Final = frozenset({"_id", "title", "text", "metadata"})
_MOST_NAMED: Final = 20

_GZIP_MAGIC: Final = b"\x1f\x8b"
_PARQUET_MAGIC: Final = b"PAR1"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def check(path: Path, unread: set[str] | None = None) -> int:
    """Read the whole file and return the number of its passages, 1 or more.

    Args:
        path: the file.
        unread: as for :func:`read`.

    Raises:
        ReadError: at the first line that is not a passage, or repeats an id; or the file holds none.
    """
    count = sum(1 for _ in read(path, unread))
    if count == 0:
        raise ReadError(path, None, "has no passages")
    return count


def read(path: Path, unread: set[str] | None = None) -> Iterator[Passage]:
    """Yield the passages of the file in order.

    Memory grows with the number of passages (ids are kept to find repeated ones), not with their size.

    Args:
        path: the file.
        unread: takes the names of members, or columns, that the file has and that are not read, 20 at most.

    Raises:
        ReadError: at the first line that is not a passage, or repeats an id.
    """
    unread = set() if unread is None else unread
    return _parquet(path, unread) if is_parquet(path) else _lines(path, unread)


def unread_shown(unread: set[str]) -> str:
    """Return in words that members of lines, or columns, are not read; empty where all are."""
    if not unread:
        return ""
    names = ", ".join(repr(name[:50]) for name in sorted(unread))
    return f"not read: {names}; attributes of a passage, its provider too, are members of its 'attributes'"


def is_parquet(path: Path) -> bool:
    """Return whether a file begins as Parquet does; False where there is no file.

    Raises:
        ReadError: it cannot be read.
    """
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as exc:
        raise ReadError(path, None, exc.strerror or str(exc)) from exc


def _parquet(path: Path, unread: set[str]) -> Iterator[Passage]:
    try:
        from evenmesh.files import parquet
    except ModuleNotFoundError as exc:
        raise ReadError(
            path,
            None,
            f"is Parquet, which needs {exc.name}, which is not installed: pip install pyarrow",
        ) from exc
    return parquet.read(path, unread)


def _lines(path: Path, unread: set[str]) -> Iterator[Passage]:
    seen: dict[str, int] = {}
    number = 0
    try:
        with _opened(path) as stream:
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise ReadError(path, number, f"is longer than {MAX_LINE_BYTES:,} bytes")
                if number == 1:
                    raw = raw.removeprefix(_BYTE_ORDER_MARK)
                if not raw.strip():
                    continue
                try:
                    passage = _passage(raw.rstrip(b"\r\n"), unread)
                except _LineError as exc:
                    raise ReadError(path, number, str(exc)) from exc
                first = seen.setdefault(passage.id, number)
                if first != number:
                    raise ReadError(path, number, f"repeats the id {passage.id!r} of line {first}")
                yield passage
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise ReadError(path, number + 1, f"the gzip data is damaged ({exc})") from exc
    except OSError as exc:
        raise ReadError(path, None, exc.strerror or str(exc)) from exc


class _LineError(ValueError):
    """Raised for a line that is not a passage."""


def _opened(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        # A pipe could be read only once, and a file is read twice: to check it, then to send it.
        raise ReadError(path, None, "is not a file")
    with path.open("rb") as stream:
        compressed = stream.read(2) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")


def _passage(raw: bytes, unread: set[str]) -> Passage:
    try:
        line = raw.decode()
    except UnicodeDecodeError as exc:
        raise _LineError(f"is not UTF-8 at byte {exc.start + 1}") from exc
    try:
        record = json.loads(line)
    except json.JSONDecodeError as exc:
        raise _LineError(f"is not JSON: {exc.msg} at column {exc.colno}") from exc
    except RecursionError as exc:
        raise _LineError("is nested too deeply") from exc
    except ValueError as exc:
        raise _LineError("has a number of too many digits") from exc
    if not isinstance(record, dict):
        raise _LineError(f"must be a JSON object, not {_kind(record)}")
    beir = "_id" in record and "id" not in record
    passage = Passage(
        id=_string(record, "_id" if beir else "id", required=True),
        text=_string(record, "text"),
        title=_string(record, "title"),
        attributes=_metadata(record) if beir else _attributes(record),
    )
    _check_bounds(passage)
    name_unread(record.keys() - (_BEIR_MEMBERS if beir else _MEMBERS), unread)
    return passage


def name_unread(names: Iterable[str], unread: set[str]) -> None:
    """Add the names of members or columns that are not read, 20 at most."""
    for name in names:
        if len(unread) < _MOST_NAMED:
            unread.add(name)


def _string(record: Mapping[str, Any], name: str, *, required: bool = False) -> str:
    if name not in record:
        if required:
            raise _LineError(f"has no {name!r}")
        return ""
    return _text(name, record[name])


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _LineError(f"{name!r} must be a string, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise _LineError(f"{name!r} holds half a surrogate pair, which is not text") from exc
    return value


def _attributes(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        _text("attributes", name): _text(f"attributes.{name}", value)
        for name, value in _object(record, "attributes").items()
    }


def _metadata(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        _text("metadata", name): _text(
            f"metadata.{name}", value if isinstance(value, str) else json.dumps(value)
        )
        for name, value in _object(record, "metadata").items()
        if isinstance(value, str | int | float)
    }


def _object(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise _LineError(f"{name!r} must be an object, not {_kind(value)}")
    return value


def _check_bounds(passage: Passage) -> None:
    """Raise for a passage outside the mesh's bounds, so that the error has a line number."""
    try:
        checks.passage("passage", passage)
    except InvalidField as exc:
        raise _LineError(f"{str(exc.field).removeprefix('passage.')} {exc.message}") from exc


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
