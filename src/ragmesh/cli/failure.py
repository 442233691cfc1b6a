"""How a command fails: one line, or one for each problem, and a status."""

from collections.abc import Sequence
from typing import Final

from ragmesh.cli.screen import Screen

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


def refuse(screen: Screen, problems: Sequence[str]) -> None:
    """Ends the command with all that is wrong with how it was called, a line each.

    Raises:
        CommandError: something is.
    """
    for problem in problems[:-1]:
        screen.fail(problem)
    if problems:
        raise CommandError(problems[-1], USAGE)
