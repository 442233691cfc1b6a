"""Times as the wire says them."""

from datetime import UTC, datetime

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from meshkit.errors import MeshError


def time_of(message: Timestamp) -> datetime:
    """The time that a reply tells, UTC.

    Raises:
        MeshError: it is none that a calendar has: the server is not one of this mesh.
    """
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise MeshError(
            grpc.StatusCode.INTERNAL, "MALFORMED_REPLY", "the reply tells a time that is none"
        ) from None
