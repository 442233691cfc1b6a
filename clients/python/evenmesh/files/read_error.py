"""The error of a file that cannot be read."""

from pathlib import Path


class ReadError(ValueError):
    """Raised for a passage file that cannot be read; use nothing of it.

    Args:
        path: the file.
        line: the line at fault, from 1; None when it is the file as a whole.
        message: what is wrong with it.
    """

    def __init__(self, path: Path, line: int | None, message: str) -> None:
        place = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {message}")
        self.path = path
        self.line = line
        self.message = message
