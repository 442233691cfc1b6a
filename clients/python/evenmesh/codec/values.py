"""Check values for what a message can hold, and read times from messages."""

from collections.abc import Iterable
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import TypeVar

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from evenmesh.wire.errors import InvalidField, MeshError

T = TypeVar("T")


def text(field: str, value: str | None) -> str:
    """Return ``value``, or the empty string for None.

    Raises:
        InvalidField: it is not a string, or holds half a surrogate pair, which UTF-8 cannot encode.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidField(field, f"must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidField(field, f"is not valid Unicode text at character {exc.start + 1}") from exc
    return value


def several(field: str, values: Iterable[T]) -> Iterable[T]:
    """Return ``values`` if they are several: a text would be its characters, one by one.

    Raises:
        InvalidField: it is a text, or nothing that has values.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        kind = "text" if isinstance(values, str) else type(values).__name__
        raise InvalidField(field, f"must be several values, not {kind}")
    return values


def whole(field: str, value: object, *, bits: int = 32) -> int:
    """Return ``value`` if it fits an unsigned field of ``bits`` bits; it may be a scalar of NumPy.

    Raises:
        InvalidField: it does not.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidField(field, f"must be a whole number, not {type(value).__name__}")
    given = int(value)
    if not 0 <= given < 2**bits:
        raise InvalidField(field, f"must be from 0 to 2^{bits} - 1, not {given}")
    return given


def number(field: str, value: object) -> float:
    """Return ``value`` if it is a number; it may be a scalar of NumPy.

    Raises:
        InvalidField: it is not.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidField(field, f"must be a number, not {type(value).__name__}")
    return float(value)


def flag(field: str, value: bool | None, *, default: bool = False) -> bool:
    """Return ``value``, or the default for None: a text such as ``"no"`` would count as true.

    Raises:
        InvalidField: it is neither.
    """
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidField(field, f"must be True or False, not {value!r}"[:200])
    return value


def time_of(message: Timestamp) -> datetime:
    """Return the time of a reply, in UTC.

    Raises:
        MeshError: it is outside the calendar, which no server of this mesh sends.
    """
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise MeshError(
            grpc.StatusCode.INTERNAL, "MALFORMED_REPLY", "the reply has a time that does not exist"
        ) from None
