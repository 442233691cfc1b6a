"""The error of a file, and its place."""

from __future__ import annotations

from pathlib import Path


class FileError(ValueError):
    """Raised for a file that cannot be used, not even in part.

    Attributes:
        path: the file.
        line: line (of a Parquet file: row) at fault, from 1; None where it is the file as a whole.
        message: what is wrong with it.
    """

    def __init__(self, path: Path, line: int | None, message: str) -> None:
        super().__init__(path, line, message)
        self.path = path
        self.line = line
        self.message = message

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.message}"
