"""How a command fails: one line, and a status."""

from typing import Final

USAGE: Final = 2
FAILED: Final = 1


class CommandError(Exception):
    """Ends a command with one line on standard error.

    Args:
        message: the line.
        status: exit status: 1 for a failure, 2 for wrong use.
    """

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status
