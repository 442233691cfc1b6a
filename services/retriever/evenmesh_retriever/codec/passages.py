"""Translate passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2
from evenmesh_retriever.domain import Passage

_PASSAGE_BYTES: Final = 512
_ATTRIBUTE_BYTES: Final = 256


def decoded_bytes(message: Message, passages: Sequence[common_pb2.Passage]) -> int:
    """Return what a message with passages takes in memory once it is read, about. Bytes.

    An attribute of two letters is ten bytes on the wire, and two texts and an entry of a table in memory.
    """
    attributes = sum(len(passage.attributes) for passage in passages)
    return message.ByteSize() + len(passages) * _PASSAGE_BYTES + attributes * _ATTRIBUTE_BYTES


def passage_of(passage: common_pb2.Passage) -> Passage:
    """Read a passage that was checked."""
    return Passage(passage.id, passage.title, passage.text, dict(passage.attributes))


def message_of(passage: Passage) -> common_pb2.Passage:
    """Write a passage."""
    return common_pb2.Passage(
        id=passage.id, title=passage.title, text=passage.text, attributes=passage.attributes
    )
