"""Pair the numbers of a protobuf enum with Python's values by name."""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import EnumDescriptor

from evenmesh.wire.errors import InvalidField

T = TypeVar("T", bound=str | Enum)


class Choices(Generic[T]):
    """Pairs the numbers of a protobuf enum with Python's values by name: ``METRIC_ROUGE_L`` with ``rougeL``.

    Args:
        enum: the enum, whose value 0 is ``PREFIX_UNSPECIFIED``.
        values: a Python value for each other name, a text or a member of an Enum; case and underscores do not
            matter.
        default: value of an unspecified field; None rejects an unspecified field.
    """

    def __init__(self, enum: EnumDescriptor, values: Iterable[T], default: T | None = None) -> None:
        prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
        numbers = {_plain(one.name.removeprefix(prefix)): one.number for one in enum.values}
        self._values = {
            numbers[_plain(value if isinstance(value, str) else value.name)]: value for value in values
        }
        self._numbers = {value: number for number, value in self._values.items()}
        if default is not None:
            self._values[0] = default
        self._names = ", ".join(one.name for one in enum.values if one.number in self._values)

    def read(self, field: str, number: int) -> T:
        """Return the value of a number.

        Raises:
            InvalidField: the enum has no such number.
        """
        if number not in self._values:
            raise InvalidField(field, f"must be one of {self._names}, got {number}")
        return self._values[number]

    def number(self, value: T) -> Any:
        """Return the number of a value; stubs have a type of their own for each enum's numbers."""
        return self._numbers[value]


def _plain(name: str) -> str:
    return name.upper().replace("_", "")
