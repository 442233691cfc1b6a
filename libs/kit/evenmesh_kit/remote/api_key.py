"""The key that a model server asks for: a file, read again when it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evenmesh.wire.file_watch import WatchedFiles

MOST_CHARACTERS: Final = 8192
"""Longest key. Characters."""


class ApiKeyError(Exception):
    """Raised for a file that holds no key; the message names the file and never quotes it."""


class Secret:
    """A text that no ``repr``, log or error shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"


class ApiKeyFile:
    """The key of a file, as the file has it now; thread-safe.

    A file that becomes unusable leaves the earlier key in use, and the log says so once.

    Args:
        path: a file of one line of printable ASCII.
        every_s: least time between two checks of the file. Seconds, [0, inf); None: the default of
            :class:`~evenmesh.wire.file_watch.WatchedFiles`.

    Raises:
        ApiKeyError: the file holds no key at the start.
    """

    def __init__(self, path: Path, *, every_s: float | None = None) -> None:
        self._path = path
        self._file = WatchedFiles([path], self._read, ApiKeyError, every_s=every_s)

    @property
    def watched(self) -> WatchedFiles[Secret]:
        """Return the file, for a monitor of reloads."""
        return self._file

    def key(self) -> Secret:
        """Return the current key."""
        return self._file.content()

    def _read(self) -> Secret:
        try:
            with self._path.open(encoding="ascii") as file:
                text = file.read(MOST_CHARACTERS + 2).strip()
        except OSError as error:
            raise ApiKeyError(f"{self._path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ApiKeyError(f"{self._path}: a key is one line of printable ASCII") from None
        if not text:
            raise ApiKeyError(f"{self._path}: holds no key")
        if len(text) > MOST_CHARACTERS or " " in text or not text.isprintable():
            raise ApiKeyError(
                f"{self._path}: a key is one line of printable ASCII without blanks, of at most "
                f"{MOST_CHARACTERS} characters"
            )
        return Secret(text)
