"""What a reader is given."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from evenmesh_documents.document import UnreadableError
from evenmesh_documents.limits import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ocr = Callable[["NDArray[np.uint8]"], str]
"""Recognizes text: takes a page, height × width × 3 (blue, green, red), and returns its text."""

Fetch = Callable[[int], bytes]
"""Returns the bytes of a file, given the most that it may have; raises UnreadableError where it cannot."""

_SAMPLE: Final = 65_536
_SPECIAL: Final = re.compile(rb"[\x80-\xff]")
_MARKS: Final = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def held(data: bytes) -> Fetch:
    """Return how bytes in memory are fetched."""

    def fetch(most: int) -> bytes:
        if len(data) > most:
            raise UnreadableError(f"has {len(data):,} bytes, at most {most:,} are read")
        return data

    return fetch


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read.

    Attributes:
        address: where it is; the ending decides which reader reads it.
        data: its bytes.
        limits: what reading it may cost.
        ocr: recognizes the text of pages that have none; None: such pages are noted.
    """

    address: str
    data: bytes
    limits: Limits = field(default_factory=Limits)
    ocr: Ocr | None = None

    @property
    def name(self) -> str:
        """Return the name of the file without folders and ending."""
        return PurePosixPath(self.address).stem

    @property
    def ending(self) -> str:
        """Return its ending, in small letters."""
        return PurePosixPath(self.address).suffix.lower()


def decoded(data: bytes, declared: str | None = None) -> str:
    """Return the text of bytes: by the byte order mark, the declared encoding, UTF-8, or the likeliest one.

    Raises:
        UnreadableError: it is no text.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if declared is not None:
        try:
            return data.decode(declared, errors="replace")
        except LookupError:
            pass
    try:
        text = data.decode()
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        sample = _sample(data)
        # It may still end within a letter of two bytes, where lines are long.
        found = from_bytes(sample).best() or from_bytes(sample[:-1]).best()
        if found is None:
            raise UnreadableError("is not text in an encoding that can be recognized") from None
        text = data.decode(found.encoding, errors="replace")
    if "\x00" in text[:_SAMPLE]:
        raise UnreadableError("is not text: it has NUL characters")
    return text


def _sample(data: bytes) -> bytes:
    """Return a part of bytes that are not UTF-8 by which their encoding is recognized.

    It begins in the line of the first byte that is not ASCII, before which all encodings are alike, and ends
    with a line: half of a letter would speak against the encoding that it is in.
    """
    special = _SPECIAL.search(data)
    first = special.start() if special is not None else 0
    begin = max(data.rfind(b"\n", 0, first) + 1, first - _SAMPLE // 2)
    sample = data[begin : begin + _SAMPLE]
    if begin + _SAMPLE < len(data):
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    return sample
