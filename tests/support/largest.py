"""Build the largest requests that the contract allows, from the bounds that the protos state.

    request = largest(RerankRequest, max_bytes=facts_of(method).max_request_bytes)

Every field is set and every list is full, as far as ``max_bytes`` allows: first lists get shorter until all fit
with short texts, then texts get longer until the room is used. Texts are different from each other and have no
control characters. What several fields must have in common (such as one weight for each answer) is up to the
caller, who leaves fields out or changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import count
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from evenmesh.common.v1.bounds_pb2 import FieldBounds
from evenmesh.wire import bounds

M = TypeVar("M", bound=Message)

_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_SHORTEST: Final = 8
_STEPS: Final = 24
_WIDTHS: Final = {  # of the largest number of each kind; bytes
    FieldDescriptor.CPPTYPE_BOOL: 1,
    FieldDescriptor.CPPTYPE_ENUM: 1,
    FieldDescriptor.CPPTYPE_UINT32: 5,
    FieldDescriptor.CPPTYPE_INT32: 10,
    FieldDescriptor.CPPTYPE_UINT64: 10,
    FieldDescriptor.CPPTYPE_INT64: 10,
    FieldDescriptor.CPPTYPE_FLOAT: 4,
    FieldDescriptor.CPPTYPE_DOUBLE: 8,
}


def largest_size(message: type[Message] | Descriptor) -> int:
    """Return the size of the largest message by its bounds alone, without building it. Bytes."""
    return _size(
        message if isinstance(message, Descriptor) else cast(Descriptor, message.DESCRIPTOR),
        _Scale(1.0, 1.0, ()),
    )


def largest(message: type[M], max_bytes: int, *, leave_out: Collection[str] = ()) -> M:
    """Return the largest message of at most ``max_bytes``.

    Args:
        message: its class.
        max_bytes: such as the largest request of its method.
        leave_out: fields to leave unset, by full name, such as ``evenmesh.orchestrator.v1.AskRequest.ensemble``.
    """
    descriptor = cast(Descriptor, message.DESCRIPTOR)

    def fits(scale: _Scale) -> bool:
        return _size(descriptor, scale) <= max_bytes

    items = _most(lambda share: fits(_Scale(share, 0.0, leave_out)))
    texts = _most(lambda share: fits(_Scale(items, share, leave_out)))
    built = message()
    _fill(built, _Scale(items, texts, leave_out), count())
    return built


@cache
def _bounds_of(field: FieldDescriptor) -> FieldBounds:
    """Return what the proto states, which is asked for a million times."""
    return bounds.bounds_of(field)


class _Scale:
    """How large a message is built.

    Args:
        items: share of the most items of each list that are built; at least one is.
        texts: share of the largest size of each text; at least a few bytes.
        leave_out: fields to leave unset, by full name.
    """

    def __init__(self, items: float, texts: float, leave_out: Collection[str]) -> None:
        self._items, self._texts, self._leave_out = items, texts, leave_out
        self._fields: dict[str, list[FieldDescriptor]] = {}
        self._padding: dict[str, str] = {}

    def fields(self, message: Descriptor) -> list[FieldDescriptor]:
        """Return the fields to set: of alternatives the largest."""
        found = self._fields.get(message.full_name)
        if found is None:
            found = self._fields[message.full_name] = list(self._chosen(message))
        return found

    def _chosen(self, message: Descriptor) -> Iterator[FieldDescriptor]:
        kept = [one for one in message.fields if one.full_name not in self._leave_out]
        for field in kept:
            others = [
                one for one in kept if one.containing_oneof and one.containing_oneof is field.containing_oneof
            ]
            if not others or max(others, key=lambda one: _field_size(one, self)) is field:
                yield field

    def items(self, field: FieldDescriptor) -> int:
        stated = _bounds_of(field)
        return max(1, int((stated.max_items or stated.max_pairs) * self._items)) if field.is_repeated else 1

    def text(self, field: FieldDescriptor) -> int:
        """Return the size of a text. Bytes."""
        entry = field.containing_type
        if entry is not None and entry.GetOptions().map_entry:
            around = next(
                one for one in cast(Descriptor, entry.containing_type).fields if one.message_type is entry
            )
            stated = _bounds_of(around)
            most = stated.max_key_bytes if field.name == "key" else stated.max_bytes
        else:
            most = _bounds_of(field).max_bytes
        return min(most, max(_SHORTEST, int(most * self._texts)))

    def padding(self, field: FieldDescriptor) -> str:
        """Return what fills a text, as long as the text is to be."""
        found = self._padding.get(field.full_name)
        if found is None:
            size = self.text(field)
            words = "ab " if size > 256 else "a"  # long ones have words, short ones are names
            found = self._padding[field.full_name] = (words * size)[:size]
        return found


def _most(fits: Callable[[float], bool]) -> float:
    """Return the largest share in [0, 1] that fits, to within 2^-24."""
    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _size(message: Descriptor, scale: _Scale) -> int:
    return sum(_field_size(field, scale) for field in scale.fields(message))


def _field_size(field: FieldDescriptor, scale: _Scale) -> int:
    items, tag = scale.items(field), _varint(field.number << 3)
    if field.type in _TEXTS:
        size = scale.text(field)
    elif field.message_type is not None:
        size = _size(field.message_type, scale)
    elif field.is_repeated:
        packed = items * _WIDTHS[field.cpp_type]
        return tag + _varint(packed) + packed
    else:
        return tag + _WIDTHS[field.cpp_type]
    return items * (tag + _varint(size) + size)


def _varint(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _fill(message: Message, scale: _Scale, numbers: Iterator[int]) -> None:
    for field in scale.fields(cast(Descriptor, message.DESCRIPTOR)):
        inner, items = field.message_type, range(scale.items(field))
        if inner is not None and inner.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), inner, len(items), scale, numbers)
        elif inner is not None:
            for _ in items:
                part = getattr(message, field.name)
                _fill(part.add() if field.is_repeated else part, scale, numbers)
                if not field.is_repeated:
                    part.SetInParent()
        elif field.is_repeated:
            if field.type in _TEXTS:
                values = [_value(field, scale, numbers) for _ in items]
            else:
                values = [_value(field, scale, numbers)] * len(items)
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, _value(field, scale, numbers))


def _fill_map(entries: Any, entry: Descriptor, items: int, scale: _Scale, numbers: Iterator[int]) -> None:
    key, value = entry.fields
    for _ in range(items):
        name = _value(key, scale, numbers)
        if value.message_type is None:
            entries[name] = _value(value, scale, numbers)
        else:
            _fill(entries[name], scale, numbers)


def _value(field: FieldDescriptor, scale: _Scale, numbers: Iterator[int]) -> Any:
    if field.type not in _TEXTS:
        return 1
    padding = scale.padding(field)
    size = len(padding)
    text = (f"{next(numbers):x}-" + padding)[:size].rstrip().ljust(size, "a")
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
