"""Keep the files of a form (multipart/form-data, RFC 7578) on disk, as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import InvalidField
from evenmesh_documents.origins.found import addressed
from evenmesh_documents.splitting import short
from evenmesh_gateway.http.bodies import pieces

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MOST_NAME_BYTES: Final = 1024
"""Longest name of a file. Bytes."""

_IDLE_S: Final = 30.0
"""Longest time in which nothing of a form comes. Seconds."""
_AT_ONCE: Final = 1 << 18
"""What is parsed and written at once. Bytes."""
_FORM: Final = "form"
_NO_FORM: Final = "must be a whole form with files, as curl -F file=@NAME sends one"


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file of a form.

    Attributes:
        path: where it is kept.
        address: its name, without characters that are none of a text.
        reason: why it is not read; empty if it is.
        size: its size. Bytes.
    """

    path: Path
    address: str
    reason: str
    size: int


def boundary_of(request: Request) -> bytes:
    """Return what parts the fields of a form.

    Raises:
        InvalidField: the media type names none.
    """
    _, parameters = parse_options_header(request.headers.get("content-type"))
    boundary = parameters.get(b"boundary", b"")
    if not boundary:
        raise InvalidField(_FORM, "the header Content-Type must name the boundary of the form")
    return boundary


async def received(
    request: Request, folder: Path, deadline: Deadline, *, most: int, most_files: int
) -> list[FormFile]:
    """Return the files of a form, once all of them are in a folder.

    A file whose name cannot be an address is named, and not kept.

    Args:
        request: the request; its body has not been read.
        folder: takes the files.
        deadline: until when.
        most: largest body. Bytes.
        most_files: most files.

    Raises:
        HttpProblem: the body is larger.
        InvalidField: it is no form, or holds no file, another field, or too many files.
        DeadlineExceeded: it has not come in time, or nothing of it for half a minute.
        HungUpError: the client hung up.
    """
    form = _Form(folder, most_files)
    try:
        # In a thread, as a disk may be slow.
        parser = MultipartParser(boundary_of(request), form.callbacks())
        waiting = bytearray()
        async for piece in pieces(request, most, deadline, idle_s=_IDLE_S):
            waiting += piece
            if len(waiting) >= _AT_ONCE:
                await asyncio.to_thread(parser.write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(parser.write, bytes(waiting))
        parser.finalize()
    except FormParserError:
        raise InvalidField(_FORM, _NO_FORM) from None
    finally:
        form.close()
    if not form.ended:
        raise InvalidField(_FORM, _NO_FORM)
    if not form.files:
        raise InvalidField("file", "must be given, at least once, as curl -F file=@NAME sends it")
    return form.files


class _Form:
    """What the parser of a form has found; used by one thread at a time.

    Attributes:
        files: the files that are here.
        ended: whether the form is whole.
    """

    def __init__(self, folder: Path, most_files: int) -> None:
        self.files: list[FormFile] = []
        self.ended = False
        self._folder = folder
        self._most_files = most_files
        self._seen: set[str] = set()
        self._headers: dict[bytes, bytes] = {}
        self._field = self._value = b""
        self._file: FormFile | None = None
        self._stream: IO[bytes] | None = None
        self._size = 0

    def callbacks(self) -> MultipartCallbacks:
        """Return what the parser calls."""
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_part,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def close(self) -> None:
        """Close the file that is being written, if there is one."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_part(self) -> None:
        """Begin a file.

        Raises:
            InvalidField: it is another field, or one file too many.
        """
        # Browsers and curl write names in UTF-8, which the parser takes for Latin-1 both ways.
        _, parameters = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = parameters.get(b"filename")
        if name is None:
            raise InvalidField(_FORM, "must hold files alone: options stand in the address, after ?")
        if len(self.files) == self._most_files:
            raise InvalidField("file", f"must be at most {self._most_files:,} files: send several uploads")
        address, reason = address_of(name.decode(errors="replace"))
        if not reason and address in self._seen:
            reason = "has a name that another file has already"
        self._seen.add(address)
        path = self._folder / str(len(self.files))
        self._file, self._size = FormFile(path, address, reason, 0), 0
        if not reason:
            self._stream = path.open("wb")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._stream is not None:
            self._stream.write(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        self.close()
        if self._file is not None:
            self.files.append(replace(self._file, size=self._size))
            self._file = None

    def _on_end(self) -> None:
        self.ended = True


def address_of(name: str) -> tuple[str, str]:
    """Return the address of a file, and why it cannot be read by its name; that is empty where it can.

    Args:
        name: its name, with ``/`` between folders.
    """
    parts = name.split("/")
    reason = ""
    if len(name.encode()) > MOST_NAME_BYTES:
        reason = f"has a name of more than {MOST_NAME_BYTES:,} bytes"
    elif "\\" in name or {"", ".", ".."} & set(parts):
        reason = "has a name that leads out of its folder, or is none"
    elif any(part.startswith(".") for part in parts):
        reason = "has a name that begins with a dot"
    return short(addressed(name)), reason
