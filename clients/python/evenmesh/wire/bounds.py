"""Read the upper bounds of fields that the protos state as options."""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from evenmesh.common.v1.bounds_pb2 import FieldBounds, bounds


def bounds_of(field: FieldDescriptor) -> FieldBounds:
    """Return the bounds that the proto states for a field; a bound that it does not state is 0."""
    return field.GetOptions().Extensions[bounds]


def max_items(message: type[Message], field: str) -> int:
    """Return the largest number of items of a repeated field, or of entries of a map."""
    stated = _stated(message, field)
    return stated.max_items or stated.max_pairs


def max_bytes(message: type[Message], field: str) -> int:
    """Return the largest size of a text: of the field, of each item, or of each value of a map. Bytes."""
    return _stated(message, field).max_bytes


def _stated(message: type[Message], field: str) -> FieldBounds:
    return bounds_of(cast(FieldDescriptor, message.DESCRIPTOR.fields_by_name[field]))
