"""End a command with an error: a line for each problem, and an exit status."""

from collections.abc import Sequence
from typing import Final

from evenmesh.commands.screen import Screen

USAGE: Final = 2
FAILED: Final = 1

INSTALL: Final = "in a checkout, pip install -c constraints.txt -r workspace.txt"
"""How to install what a command lacks: all distributions, because the package index has none of them."""


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
    """Show all problems of a command's arguments, a line each.

    Raises:
        CommandError: there are any; it has the last one.
    """
    for problem in problems[:-1]:
        screen.fail(problem)
    if problems:
        raise CommandError(problems[-1], USAGE)
