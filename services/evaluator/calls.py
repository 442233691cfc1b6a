"""What the halves of the servicer share about a call."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message

Context = grpc.aio.ServicerContext[Any, Any]
"""The context of a call."""


def kib(message: Message) -> int:
    """What a message weighs at admission: its size, rounded up. KiB, [1, inf)."""
    return 1 + message.ByteSize() // 1024
