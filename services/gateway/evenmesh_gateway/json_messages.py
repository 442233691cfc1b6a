"""Convert messages between JSON (the mapping of protobuf) and bytes, at a bounded cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, Final, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from evenmesh.wire.bounds import bounds_of
from evenmesh.wire.errors import InvalidField
from evenmesh_gateway.http.json_values import JsonValues
from evenmesh_kit.admission.queue import Admission, Admitted
from evenmesh_kit.compute.tenant_pool import TenantPool

_ON_LOOP_BYTES: Final = 16_384
"""Size up to which a text is read, or a value written, without a thread. Bytes."""
_MESSAGE_ON_LOOP_BYTES: Final = 131_072
"""Size up to which a message is written as JSON without a thread: what takes about a millisecond. A hundred
passages are below it, and to wait for a thread takes them longer. Bytes."""
_PLACE: Final = re.compile(r' at "?\w+\.([\w.\[\]]*[\w\]])')
_FIELD: Final = re.compile(r"Failed to parse (\S+) field: ")
_STEP: Final = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
"""A step of a path: the name of a field, or the place in a list."""
_WANTED: Final = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number from -2^31 to 2^31 - 1",
    FieldDescriptor.CPPTYPE_INT64: "a whole number from -2^63 to 2^63 - 1",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 2^32 - 1",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number from 0 to 2^64 - 1",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
}
"""What a value of a field must be, by the type of the field."""
_BYTES_PER_VALUE: Final = 96
"""Memory of one value of a decoded text: of its object, and of its place in a list or table. Bytes."""
_MOST_WORDS: Final = 400
_MOST_READ: Final = 2_000
_MOST_PATH: Final = 256
_MOST_VALUE: Final = 60
"""Longest text of an error: what is sent on, what is looked at, the name of a field, and its value."""
_WELL_KNOWN: Final = "google.protobuf."
"""Package of messages that JSON has other values for than objects: times, durations, any values."""
_MAYBE_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Half of a surrogate pair, or one of both halves, as JSON writes it or as bytes."""
_VALUES: Final = JsonValues()

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class JsonMessages:
    """Converts messages; large ones in threads, and no more of them at a time than memory allows.

    Args:
        pool: the threads.
        memory: admits the memory that JSON takes while it is read. Bytes.
    """

    def __init__(self, pool: TenantPool, memory: Admission) -> None:
        self._pool = pool
        self._memory = memory

    async def read(self, kind: type[Message], text: bytes) -> Message:
        """Return the message that a JSON text says; an empty text is the empty message.

        Names of fields may be as in the proto or in camel case.

        Raises:
            InvalidField: it is no JSON, or not of this message.
            MeshError: RESOURCE_EXHAUSTED; it does not fit the memory, or not now.
        """
        if len(text) <= _ON_LOOP_BYTES:
            return parse(kind, text)
        async with self._memory.admit(_memory_of(text)):
            return await self._pool.run(parse, kind, text)

    async def loads(self, make: Callable[[Any], T], text: bytes) -> T:
        """Return what ``make`` makes of the value that a JSON text says; errors as of :meth:`read`."""
        if len(text) <= _ON_LOOP_BYTES:
            return make(loads(text))
        async with self._memory.admit(_memory_of(text)):
            return await self._pool.run(lambda: make(loads(text)))

    def admitted(self, size: int) -> Admitted:
        """Hold memory for a value that is made while the block runs. Bytes; errors as of :meth:`read`."""
        return self._memory.admit(size)

    async def dumps(self, build: Callable[[], Any], size: int) -> bytes:
        """Return as JSON what ``build`` returns, which takes ``size`` bytes of memory."""
        if size <= _ON_LOOP_BYTES:
            return _dumped(build)
        return await self._pool.run(_dumped, build)

    async def write(self, kind: type[Message], data: bytes) -> bytes:
        """Return a serialized message as JSON, with names in camel case, on one line."""
        if len(data) <= _MESSAGE_ON_LOOP_BYTES:
            return write(kind, data)
        return await self._pool.run(write, kind, data)


def loads(text: bytes) -> Any:
    """Return the value that a JSON text says, whose texts are whole.

    Raises:
        InvalidField: it is no JSON, or a text in it holds half of a character.
    """
    value = _value(text)
    if _MAYBE_HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidField(
                "body", "holds half of a character: a text was cut within a surrogate pair"
            ) from None
    return value


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidField("body", "must be JSON of less depth") from None
    except ValueError as error:
        raise InvalidField("body", f"must be JSON: {error}"[:_MOST_WORDS]) from None


def parse(kind: type[Message], text: bytes) -> Message:
    """Return the message that a JSON text says; see :meth:`JsonMessages.read`."""
    return from_value(kind, _value(text) if text.strip() else {})


def from_value(kind: type[M], value: Any, field: str = "") -> M:
    """Return the message that a value of JSON says.

    Args:
        kind: class of the message.
        value: the value.
        field: name of the field that holds it, for errors; empty for a whole body.

    Raises:
        InvalidField: it is not of this message.
    """
    try:
        _check_shape(cast("Descriptor", kind.DESCRIPTOR), value, field)
        return json_format.ParseDict(value, kind())
    except RecursionError:
        raise InvalidField(field or "body", "must be JSON of less depth") from None
    except (json_format.ParseError, ValueError, TypeError, AttributeError, OverflowError) as error:
        words = str(error)[:_MOST_READ]
        place = _PLACE.search(words)
        path = place[1] if place is not None else ".".join(_FIELD.findall(words))
        why = _wanted(cast("Descriptor", kind.DESCRIPTOR), value, path) or _FIELD.sub("", words)[:_MOST_WORDS]
        raise InvalidField(".".join(filter(None, (field, path)))[:_MOST_PATH] or "body", why) from None


def _check_shape(message: Descriptor, value: Any, path: str) -> None:
    """Check that objects and lists are where a message has them, and are no longer than the proto allows.

    ``ParseDict`` takes anything that it can iterate: an empty list where an object belongs is an object to
    it, and other values fail with words of Python. It makes an object of each item, however many there are.

    Raises:
        InvalidField: they are not; names the field.
    """
    if not isinstance(value, dict):
        raise InvalidField(path or "body", "must be a JSON object")
    fields = _fields(message)
    for name, one in value.items():
        field = fields.get(name)
        below = f"{path}.{name}" if path else name
        if field is None:
            known = ", ".join(one.name for one in message.fields) or "none"
            raise InvalidField(below[:_MOST_PATH], f"is no field of {message.name}; there are: {known}")
        if one is None:
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            if not isinstance(one, dict):
                raise InvalidField(below, "must be a JSON object")
            if len(one) > _most(field):
                raise InvalidField(below, f"must be at most {_most(field)} entries, has more")
        elif field.is_repeated:
            if not isinstance(one, list):
                raise InvalidField(below, "must be a JSON list")
            if len(one) > _most(field):
                raise InvalidField(below, f"must be at most {_most(field)} items, has more")
            if inner is not None and not inner.full_name.startswith(_WELL_KNOWN):
                for at, item in enumerate(one):
                    _check_shape(inner, item, f"{below}[{at}]")
        elif inner is not None and not inner.full_name.startswith(_WELL_KNOWN):
            _check_shape(inner, one, below)


def _wanted(message: Descriptor, value: Any, path: str) -> str:
    """Return what a field that is no message must be, and what it is; empty where the path leads to none.

    The library leaves some places in lists out of its paths; then what the field is remains unknown.
    """
    field: FieldDescriptor | None = None
    known = True
    for step in _STEP.findall(path):
        if step.startswith("["):
            known = known and isinstance(value, list) and step[1:-1].isdecimal()
            value = value[int(step[1:-1])] if known else None
            continue
        inner = message if field is None else field.message_type
        field = None if inner is None else _fields(inner).get(step)
        if field is None:
            return ""
        known = known and isinstance(value, dict)
        value = value.get(step) if known else None
    if field is None or field.message_type is not None:
        return ""
    if isinstance(value, str) and field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "holds half of a character: it was cut within a surrogate pair"
    if field.enum_type is not None:
        wanted = "one of " + ", ".join(one.name for one in field.enum_type.values if one.number)
    else:
        wanted = _WANTED[field.cpp_type]
    known = known and not (field.is_repeated and isinstance(value, list))
    return f"must be {wanted}, not {json.dumps(value)[:_MOST_VALUE]}" if known else f"must be {wanted}"


@cache
def _fields(message: Descriptor) -> dict[str, FieldDescriptor]:
    """Return the fields of a message by the names that JSON may have for them."""
    return {name: one for one in message.fields for name in (one.name, one.json_name)}


@cache
def _most(field: FieldDescriptor) -> float:
    """Return the largest number of items of a list or of entries of a map, infinite where none is stated."""
    stated = bounds_of(field)
    return stated.max_items or stated.max_pairs or inf


def _dumped(build: Callable[[], Any]) -> bytes:
    return json.dumps(build(), separators=(",", ":")).encode()


def write(kind: type[Message], data: bytes) -> bytes:
    """Return a serialized message as JSON on one line."""
    return json.dumps(_VALUES.of(kind.FromString(data)), ensure_ascii=False).encode(errors="replace")


def _memory_of(text: bytes) -> int:
    """Return an upper estimate of the memory that a JSON text takes when it is read. Bytes."""
    values = text.count(b",") + text.count(b"[") + text.count(b"{") + 1
    return 2 * len(text) + _BYTES_PER_VALUE * values
