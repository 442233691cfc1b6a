"""Checks of request fields that servicers share.

Each raises :class:`evenmesh.wire.errors.InvalidField` with the field's name and otherwise returns its value.
Bounds are those of ``protos/evenmesh/common/v1/common.proto``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from evenmesh.wire.errors import InvalidField

MAX_ID_BYTES: Final = 256
"""Largest passage id. Bytes."""
MAX_PASSAGE_BYTES: Final = 65_536
"""Largest title and text of a passage together. Bytes."""
MAX_ATTRIBUTES: Final = 64
"""Most attributes of a passage."""
MAX_ATTRIBUTE_BYTES: Final = 1_024
"""Largest attribute, key and value together. Bytes."""
MAX_STOP: Final = 8
"""Most texts that end an answer."""
MAX_STOP_BYTES: Final = 128
"""Longest of them. Bytes."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

N = TypeVar("N", int, float)


class PassageLike(Protocol):
    """A passage as :func:`passages` reads it: the proto's message or a service's own dataclass."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


def at_most(field: str, value: str, max_bytes: int) -> str:
    """Check for at most ``max_bytes`` bytes of UTF-8."""
    size = len(value.encode())
    if size > max_bytes:
        raise InvalidField(field, f"must be at most {max_bytes} bytes, has {size}")
    return value


def text(field: str, value: str, *, max_bytes: int = 8192) -> str:
    """Check for 1 to ``max_bytes`` bytes of UTF-8 that are not only white space."""
    if not at_most(field, value, max_bytes).strip():
        raise InvalidField(field, "must not be empty or only white space")
    return value


def stop(field: str, value: Sequence[str]) -> tuple[str, ...]:
    """Check for at most :data:`MAX_STOP` texts of 1 to :data:`MAX_STOP_BYTES` bytes."""
    if len(value) > MAX_STOP:
        raise InvalidField(field, f"must be at most {MAX_STOP} texts, has {len(value)}")
    for at, one in enumerate(value):
        if not at_most(f"{field}[{at}]", one, MAX_STOP_BYTES):
            raise InvalidField(f"{field}[{at}]", "must not be empty")
    return tuple(value)


def name(field: str, value: str) -> str:
    """Check for a name of 1 to 64 of a-z, 0-9, ``-`` and ``_`` that starts with a letter or digit."""
    if not _NAME.fullmatch(value):
        raise InvalidField(
            field,
            f"must be 1 to 64 of a-z, 0-9, '-' and '_', starting with a letter or digit, "
            f"got {_quoted(value)}",
        )
    return value


def between(field: str, value: N, low: float, high: float) -> N:
    """Check for ``low <= value <= high``; NaN is outside every range."""
    if not low <= value <= high:
        raise InvalidField(field, f"must be in [{low}, {high}], got {value}")
    return value


def finite(field: str, value: float) -> float:
    """Check for a number that is neither infinite nor NaN."""
    if not math.isfinite(value):
        raise InvalidField(field, f"must be a finite number, got {value}")
    return value


def passage(field: str, value: PassageLike) -> None:
    """Check the bounds of one passage."""
    size = len(value.id.encode())
    if not 1 <= size <= MAX_ID_BYTES:
        raise InvalidField(f"{field}.id", f"must be 1 to {MAX_ID_BYTES} bytes, has {size}")
    if _CONTROL.search(value.id):
        raise InvalidField(f"{field}.id", "must not hold control characters")
    size = len(value.title.encode()) + len(value.text.encode())
    if size > MAX_PASSAGE_BYTES:
        raise InvalidField(
            f"{field}.text", f"must be at most {MAX_PASSAGE_BYTES} bytes with the title, has {size}"
        )
    if not size:
        raise InvalidField(f"{field}.text", "must not be empty where the title is empty too")
    if len(value.attributes) > MAX_ATTRIBUTES:
        raise InvalidField(
            f"{field}.attributes", f"must be at most {MAX_ATTRIBUTES} entries, has {len(value.attributes)}"
        )
    for key, attribute in value.attributes.items():
        # Keys and providers become names in reports; other values are free text and may have line breaks.
        if _CONTROL.search(key) or "\x00" in attribute or (key == "provider" and _CONTROL.search(attribute)):
            raise InvalidField(f"{field}.attributes", f"{_quoted(key)} must not hold control characters")
        size = len(key.encode()) + len(attribute.encode())
        if size > MAX_ATTRIBUTE_BYTES:
            raise InvalidField(
                f"{field}.attributes",
                f"each must be at most {MAX_ATTRIBUTE_BYTES} bytes, {_quoted(key)} has {size}",
            )


def passages(field: str, value: Sequence[PassageLike], *, min: int = 1, max: int = 1000) -> None:  # noqa: A002
    """Check for ``min`` to ``max`` passages within their bounds, with unique ids."""
    if not min <= len(value) <= max:
        raise InvalidField(field, f"must be {min} to {max} passages, has {len(value)}")
    for index, one in enumerate(value):
        passage(f"{field}[{index}]", one)
    unique(field, (one.id for one in value))


def unique(field: str, ids: Iterable[str]) -> None:
    """Check that ids are unique; the error names the second occurrence, such as ``field[7].id``."""
    first: dict[str, int] = {}
    for index, one in enumerate(ids):
        if one in first:
            raise InvalidField(
                f"{field}[{index}].id", f"{_quoted(one)} is the id of {field}[{first[one]}] too"
            )
        first[one] = index


def _quoted(value: str) -> str:
    """Return a value for a message: quoted, and cut to 80 characters."""
    return repr(value if len(value) <= 80 else value[:77] + "...")
