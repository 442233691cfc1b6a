"""What a reader is given."""

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

        found = from_bytes(data[:_SAMPLE]).best()
        if found is None:
            raise UnreadableError("is not text in an encoding that can be recognized") from None
        text = data.decode(found.encoding, errors="replace")
    if "\x00" in text[:_SAMPLE]:
        raise UnreadableError("is not text: it has NUL characters")
    return text
