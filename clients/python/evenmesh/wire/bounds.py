"""Read the upper bounds of fields that the protos state as options."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from evenmesh.common.v1.bounds_pb2 import FieldBounds, bounds


def bounds_of(field: FieldDescriptor) -> FieldBounds:
    """Return the bounds that the proto states for a field; a bound that it does not state is 0."""
    return field.GetOptions().Extensions[bounds]
