"""Say messages as values of JSON, as :mod:`google.protobuf.json_format` does, in a fraction of its time.

What a field is, its name and how its values are said, is looked up once for a kind of message, and not again
for each of its values: a first event of an ask has a hundred passages.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

_Say = Callable[[Any], Any]
_KNOWN_FILES: Final = "google/protobuf/"
"""Files whose messages have a mapping of their own: times, durations, values of JSON."""
_LONG: Final = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


class JsonValues:
    """Says messages, in the JSON mapping of protobuf.

    Args:
        snake_case: whether names are those of the protos, and not in camel case.
        zeros: whether fields without presence are said where they are empty too.
    """

    def __init__(self, *, snake_case: bool = False, zeros: bool = False) -> None:
        self._snake_case = snake_case
        self._zeros = zeros
        self._kinds: dict[Any, _Say] = {}

    def of(self, message: Message) -> Any:
        """Return the value of a message: a table, but for times and the like."""
        kind = message.DESCRIPTOR
        say = self._kinds.get(kind)
        if say is None:
            say = self._kinds[kind] = self._kind(kind)
        return say(message)

    def _kind(self, kind: Any) -> _Say:
        known = kind.file.name.startswith(_KNOWN_FILES)
        # The shortest text of a float32 takes its library longer than all else here.
        if known or any(one.cpp_type == FieldDescriptor.CPPTYPE_FLOAT for one in kind.fields):
            return partial(
                MessageToDict,
                preserving_proto_field_name=self._snake_case,
                always_print_fields_with_no_presence=self._zeros,
            )
        fields: dict[FieldDescriptor, tuple[str, _Say | None]] = {}
        empty = self._empty(kind)

        def say(message: Message) -> dict[str, Any]:
            found = {}
            for field, value in message.ListFields():
                known = fields.get(field)
                if known is None:
                    known = fields[field] = (self._name(field), self._field(field))
                name, one = known
                found[name] = value if one is None else one(value)
            for name, make in empty.items():
                if name not in found:
                    found[name] = make()
            return found

        return say

    def _name(self, field: FieldDescriptor) -> str:
        return field.name if self._snake_case else str(field.json_name)

    def _empty(self, kind: Any) -> Mapping[str, Callable[[], Any]]:
        """Return what says each field that is empty and is said all the same."""
        found: dict[str, Callable[[], Any]] = {}
        if self._zeros:
            for field in kind.fields:
                if field.has_presence:
                    continue
                if _is_map(field):
                    found[self._name(field)] = dict
                elif field.is_repeated:
                    found[self._name(field)] = list
                else:
                    one, zero = self._one(field), field.default_value
                    found[self._name(field)] = partial(_same, zero if one is None else one(zero))
        return found

    def _field(self, field: FieldDescriptor) -> _Say | None:
        """Return what says the values of a field; None where they are said as they are."""
        if _is_map(field):
            return self._table(field.message_type)
        one = self._one(field)
        if not field.is_repeated:
            return one
        if one is None:
            return list
        return lambda values: [one(value) for value in values]

    def _table(self, entry: Any) -> _Say:
        key_field = entry.fields_by_name["key"]
        value = self._one(entry.fields_by_name["value"])
        if key_field.type != FieldDescriptor.TYPE_STRING:
            key = _bool_key if key_field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else str
            return lambda table: {
                key(name): one if value is None else value(one) for name, one in table.items()
            }
        if value is None:
            return dict
        return lambda table: {name: value(one) for name, one in table.items()}

    def _one(self, field: FieldDescriptor) -> _Say | None:
        """Return what says one value of a field; None where it is said as it is."""
        if field.message_type is not None:
            return self.of
        if field.enum_type is not None:
            names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, number)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return lambda data: b64encode(data).decode()
        if field.cpp_type in _LONG:
            return str
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            return _number
        return None


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _same(value: Any) -> Any:
    return value


def _bool_key(key: bool) -> str:
    return "true" if key else "false"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
