"""Map messages to dataclasses and back by the names of their fields.

A field of a dataclass gets the message's field of the same name, converted as its type hint says; values
become fields of a message as its descriptor says. Callers give only what differs in name or form.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from evenmesh.codec.values import flag, number, several, text, time_of, whole
from evenmesh.wire.errors import InvalidField

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_Convert: TypeAlias = Callable[[Any], Any]
_Field: TypeAlias = Any
"""A field's descriptor, of whichever implementation protobuf uses."""


def decode(kind: type[T], *messages: Message, **given: object) -> T:
    """Build a dataclass from the messages' fields of the same names; of the first message that has the name.

    Repeated fields become tuples, maps dicts ordered by key, timestamps times in UTC, and enum values their
    name in lower case without the enum's own. Where the type hint allows None, an unset field, or an element
    that is NaN, becomes None. A message with one repeated field becomes a tuple where the hint is one.

    Args:
        kind: the dataclass.
        messages: where its values are.
        given: values of the fields that the message lacks, or has in another form.

    Raises:
        MeshError: a timestamp is outside the calendar.
    """
    values = dict(given)
    for message in messages:
        for name, read in _readers(cast(type, kind), message.DESCRIPTOR, frozenset(values)):
            values[name] = read(message)
    return kind(**values)


def word(enum: EnumDescriptor, number: int) -> str:
    """Return an enum value's name in lower case without the enum's own; of an unknown value its number."""
    value = enum.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(_prefix(enum)).lower()


@cache
def _readers(kind: type, descriptor: Descriptor, known: frozenset[str]) -> tuple[tuple[str, _Convert], ...]:
    """Return how to read the fields of a dataclass, other than the known ones, from such a message."""
    hints = get_type_hints(kind)
    return tuple(
        (field.name, _reader(descriptor.fields_by_name[field.name], hints[field.name]))
        for field in fields(kind)
        if field.name in descriptor.fields_by_name and field.name not in known
    )


def _reader(field: _Field, hint: Any) -> _Convert:
    """Return a function that reads the field of a message."""
    name = field.name
    arguments = get_args(hint)
    if _is_map(field):
        convert = _converter(field.message_type.fields_by_name["value"], arguments[1])
        return lambda message: {key: convert(value) for key, value in sorted(getattr(message, name).items())}
    if field.is_repeated:
        convert = _converter(field, arguments[0])
        return lambda message: tuple(convert(value) for value in getattr(message, name))
    if type(None) in arguments and field.has_presence:
        convert = _converter(field, next(one for one in arguments if one is not type(None)))
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    convert = _converter(field, hint)
    return lambda message: convert(getattr(message, name))


def _converter(field: _Field, hint: Any) -> _Convert:
    """Return a function that converts one value of the field."""
    if field.enum_type is not None:
        return _enum_converter(field.enum_type, hint)
    if field.message_type is None:
        if type(None) in get_args(hint):
            return lambda value: None if math.isnan(value) else value
        return lambda value: value
    if hint is datetime:
        return time_of
    optional = type(None) in get_args(hint)
    inner = next((one for one in get_args(hint) if one is not type(None)), hint) if optional else hint
    if get_origin(inner) is tuple:
        (only,) = field.message_type.fields
        read = _reader(only, inner)
        return (lambda message: read(message) or None) if optional else read
    return partial(decode, inner)


def _enum_converter(enum: EnumDescriptor, hint: Any) -> _Convert:
    """Return a function from a number to its word; of a Literal, its first word stands for all others."""
    words: tuple[str, ...] = get_args(hint) if get_origin(hint) is Literal else ()

    def convert(number: int) -> str:
        found = word(enum, number)
        return found if not words or found in words else words[0]

    return convert


def encode(kind: type[M], values: object, path: str = "") -> M:
    """Build a message from values by the names of its fields; None leaves a field unset.

    Numbers are checked for whether they fit their field; their ranges are checked by the mesh.

    Args:
        kind: the message.
        values: a mapping or a dataclass. The value of a message field is likewise one of both, or a message,
            or, of a message with one repeated field, its values; that of an enum field the value's name in
            lower case without the enum's own.
        path: path of the message within the request, for errors; empty for the request itself.

    Raises:
        InvalidField: a value does not fit its field.
        TypeError: the message has no such field.
    """
    message = kind()
    if not _has_fields(values):
        raise _no_fields(message, values, path)
    _fill(message, values, path)
    return message


def _fill(message: Message, values: object, path: str) -> None:
    for name, value in _items(values):
        if value is None:
            continue
        field: _Field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise TypeError(f"{message.DESCRIPTOR.full_name} has no field {name}")
        place = f"{path}.{name}" if path else name
        if _is_map(field):
            _fill_map(getattr(message, name), field.message_type.fields_by_name["value"], value, place)
        elif field.is_repeated:
            _fill_repeated(getattr(message, name), field, value, place)
        elif field.message_type is not None:
            _fill_message(getattr(message, name), value, place)
        else:
            setattr(message, name, _scalar(field, value, place))


def _fill_map(target: Any, field: _Field, values: Mapping[str, Any], path: str) -> None:
    for key, value in values.items():
        place = f"{path}[{key!r}]"
        if field.message_type is None:
            target[text(path, key)] = _scalar(field, value, place)
        else:
            _fill_message(target[text(path, key)], value, place)


def _fill_repeated(target: Any, field: _Field, values: Iterable[Any], path: str) -> None:
    several(path, values)
    if field.message_type is None:
        target.extend(_scalar(field, value, path) for value in values)
        return
    for place, value in enumerate(values):
        _fill_message(target.add(), value, f"{path}[{place}]")


def _fill_message(message: Message, value: object, path: str) -> None:
    message.SetInParent()
    if isinstance(value, Message):
        message.CopyFrom(value)
    elif _has_fields(value):
        _fill(message, value, path)
    elif len(message.DESCRIPTOR.fields) == 1:
        _fill(message, {message.DESCRIPTOR.fields[0].name: value}, path)
    else:
        raise _no_fields(message, value, path)


def _has_fields(value: object) -> bool:
    return isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _no_fields(message: Message, value: object, path: str) -> InvalidField:
    name = message.DESCRIPTOR.name
    return InvalidField(path or name, f"must have the fields of {name}, not be {type(value).__name__}")


def _items(values: object) -> Iterable[tuple[str, Any]]:
    if isinstance(values, Mapping):
        return values.items()
    return ((field.name, getattr(values, field.name)) for field in fields(values))  # type: ignore[arg-type]  # checked


def _scalar(field: _Field, value: Any, path: str) -> Any:
    if field.enum_type is not None:
        return enum_number(path, value, field.enum_type)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return text(path, value)
        case FieldDescriptor.CPPTYPE_UINT32:
            return whole(path, value)
        case FieldDescriptor.CPPTYPE_UINT64:
            return whole(path, value, bits=64)
        case FieldDescriptor.CPPTYPE_BOOL:
            return flag(path, value)
        case _:
            return number(path, value)


def enum_number(path: str, value: str, enum: EnumDescriptor) -> Any:
    """Return the number of an enum value by its name in lower case without the enum's own.

    Raises:
        InvalidField: the enum has no such value.
    """
    found = enum.values_by_name.get(f"{_prefix(enum)}{value.upper()}") if isinstance(value, str) else None
    if found is None or found.number == 0:
        words = ", ".join(word(enum, one.number) for one in enum.values if one.number)
        raise InvalidField(path, f"must be one of {words}, not {value!r}")
    return found.number


@cache
def _prefix(enum: EnumDescriptor) -> str:
    """Return what the names of an enum's values begin with: ``FINISH_REASON_`` of ``FinishReason``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper() + "_"


def _is_map(field: _Field) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
