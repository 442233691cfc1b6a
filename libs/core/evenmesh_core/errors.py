"""The error of an invalid argument."""

from __future__ import annotations

import reprlib


class InvalidInput(ValueError):  # noqa: N818 - the name is the contract of algorithms.md
    """An argument outside what a function accepts.

    Attributes:
        argument: name of the argument as the caller wrote it, with an index where one element is at fault
            (``"scores[3]"``).
        value: the offending value.
        allowed: the allowed range, in words.
    """

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(argument, value, allowed)
        self.argument = argument
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        # Values may be whole corpora: the message shows only their beginning.
        return f"{self.argument} is {reprlib.repr(self.value)}; allowed: {self.allowed}"
