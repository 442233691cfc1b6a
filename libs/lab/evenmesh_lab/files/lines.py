"""Lines of text files, plain or gzip, with their numbers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

from evenmesh_lab.files.failure import FileError

T = TypeVar("T")

MAX_LINE_BYTES: Final = 1 << 26
"""Longest line that is read, so that a file of another kind does not fill the memory."""
MAX_WHOLE_BYTES: Final = 1 << 32
"""Largest file that is read as a whole, uncompressed: a few kilobytes of gzip can become gigabytes."""
MAX_FILE_BYTES: Final = 1 << 36
"""Largest file that is read line by line, uncompressed."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, undecoded, with their numbers from 1.

    Raises:
        FileError: the file is not there or not readable, empty, damaged gzip, or larger than
            :data:`MAX_FILE_BYTES`; or a line is endless.
    """
    number = 0
    size = 0
    filled = False
    try:
        with _opened(path) as stream:
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                size += len(raw)
                if size > MAX_FILE_BYTES:
                    raise FileError(path, number, f"the file is larger than {MAX_FILE_BYTES:,} bytes")
                if len(raw) > MAX_LINE_BYTES:
                    raise FileError(path, number, f"is longer than {MAX_LINE_BYTES:,} bytes")
                if number == 1:
                    raw = raw.removeprefix(_BYTE_ORDER_MARK)
                if raw.strip():
                    filled = True
                    yield number, raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise FileError(path, number + 1, f"the gzip data is damaged ({exc})") from exc
    except OSError as exc:
        raise FileError(path, None, exc.strerror or str(exc)) from exc
    if not filled:
        raise FileError(path, None, "is empty")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, without their ends, with their numbers from 1.

    Raises:
        FileError: as :func:`raw_lines`, or a line is not UTF-8.
    """
    for number, raw in raw_lines(path):
        yield number, decoded(path, number, raw)


def each_line(
    path: Path, parse: Callable[[Path, int, str], T], problems: list[FileError]
) -> Iterator[tuple[int, T]]:
    """Parse each line that is not blank, and yield it with its number; collect the errors of lines.

    Raises:
        FileError: the file cannot be read.
    """
    for number, raw in raw_lines(path):
        try:
            value = parse(path, number, decoded(path, number, raw))
        except FileError as error:
            problems.append(error)
        else:
            yield number, value


def decoded(path: Path, number: int, raw: bytes) -> str:
    """Return one line as text.

    Raises:
        FileError: it is not UTF-8.
    """
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as exc:
        raise FileError(path, number, f"is not UTF-8 at byte {exc.start + 1}") from exc


def json_value(path: Path, number: int | None, text: str) -> Any:
    """Return the value of a JSON text.

    Args:
        path: the file, for errors.
        number: the line that the text is; None where it is all of the file.
        text: the text.

    Raises:
        FileError: it is not JSON, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        place = exc.lineno if number is None else number
        raise FileError(path, place, f"is not JSON: {exc.msg} at column {exc.colno}") from exc
    except RecursionError as exc:
        raise FileError(path, number, "is nested too deeply") from exc
    except ValueError as exc:
        raise FileError(path, number, "has a number of too many digits") from exc


def whole_text(path: Path) -> str:
    """Return all of a file, line ends unchanged.

    Raises:
        FileError: as :func:`lines`, or it is larger than :data:`MAX_WHOLE_BYTES`.
    """
    parts = []
    expected = 1
    size = 0
    for number, raw in raw_lines(path):
        size += len(raw) + number - expected
        if size > MAX_WHOLE_BYTES:
            raise FileError(path, number, f"the file is larger than {MAX_WHOLE_BYTES:,} bytes")
        parts.append("\n" * (number - expected))
        parts.append(decoded(path, number, raw) + "\n")
        expected = number + 1
    return "".join(parts)


def _opened(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise FileError(path, None, "is not a file")
    with path.open("rb") as stream:
        compressed = stream.read(2) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")
