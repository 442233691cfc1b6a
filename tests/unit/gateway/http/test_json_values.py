"""Messages are said as protobuf's own JSON says them, whatever they hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, struct_pb2, type_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_gateway import json_messages
from evenmesh_gateway.http.json_values import JsonValues
from evenmesh_gateway.methods import public_methods

KINDS: dict[str, Any] = {
    method.reply.DESCRIPTOR.full_name: method.reply for method in public_methods().values()
}
DEEP = 4
LEAVES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: ["", 'a "b" \\ \n \u2028 \u00e4 \U0001f600'],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
    FieldDescriptor.CPPTYPE_INT32: [0, -(2**31), 7],
    FieldDescriptor.CPPTYPE_UINT32: [0, 2**32 - 1],
    FieldDescriptor.CPPTYPE_INT64: [0, -(2**63), 2**53 + 1],
    FieldDescriptor.CPPTYPE_UINT64: [0, 2**64 - 1],
    FieldDescriptor.CPPTYPE_DOUBLE: [0.0, 0.1, 1e300, 2.0, -0.0, math.inf, -math.inf, math.nan],
    FieldDescriptor.CPPTYPE_FLOAT: [0.0, 0.1, 3.0],
}


def values_of(field: Any, depth: int, turn: int) -> list[Any]:
    """Return some values of a field, others in each turn."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"\0\xff", b""]
    if field.enum_type is not None:
        numbers = [one.number for one in field.enum_type.values]
        return [numbers[turn % len(numbers)], 1_000]  # the last has no name
    some = LEAVES[field.cpp_type]
    return some[turn % len(some) :] + some


def fill(message: Message, depth: int, turn: int) -> Message:
    """Fill all fields to a depth; of a oneof the last, others in each turn."""
    fields: list[Any] = [*message.DESCRIPTOR.fields]
    begin = turn % max(1, len(fields))
    for field in fields[begin:] + fields[:begin]:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            table = getattr(message, field.name)
            if value.message_type is None:
                table["b"], table["a"] = values_of(value, depth, turn)[:2]
            elif depth:
                fill(table["key"], depth - 1, turn)
        elif field.message_type is not None:
            if depth and field.message_type.full_name != "google.protobuf.Timestamp":
                holder = getattr(message, field.name)
                one = holder.add() if field.is_repeated else holder
                one.SetInParent()
                fill(one, depth - 1, turn)
            elif depth:
                getattr(message, field.name).FromMilliseconds(1_700_000_000_123)
        elif field.is_repeated:
            getattr(message, field.name).extend(values_of(field, depth, turn))
        else:
            setattr(message, field.name, values_of(field, depth, turn)[0])
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_every_reply_is_said_as_by_protobuf(kind: str) -> None:
    for turn in range(9):
        message = fill(KINDS[kind](), DEEP, turn)
        said = json_messages.write(type(message), message.SerializeToString())
        expected = json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()
        # The order of a map's keys is that of a table, which may differ where a message was read again.
        assert json.loads(said) == json.loads(expected)
        assert sorted(said) == sorted(expected)


@pytest.mark.parametrize("message", [pb.AskResponse(), pb.ExposureReport(), common_pb2.Passage()])
def test_empty_fields_and_names_of_the_proto_are_said_where_they_are_wanted(message: Message) -> None:
    says = JsonValues(snake_case=True, zeros=True)
    for turn in range(9):
        some = message if not turn else fill(type(message)(), DEEP, turn)
        expected = json_format.MessageToDict(
            some, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert repr(says.of(some)) == repr(expected)  # NaN is not equal to itself


@pytest.mark.parametrize(
    "message",
    [
        struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value(number_value=1.5)])),
        type_pb2.Option(name="a"),
        descriptor_pb2.EnumValueDescriptorProto(name="a", number=3),
    ],
)
def test_messages_with_a_mapping_of_their_own_keep_it(message: Message) -> None:
    assert JsonValues().of(message) == json_format.MessageToDict(message)
