"""Passages: the shape that queries and collections share."""

from __future__ import annotations

from ragmesh.common.v1 import common_pb2
from services.retriever.domain import Passage


def passage_of(passage: common_pb2.Passage) -> Passage:
    """Reads a passage that was checked."""
    return Passage(passage.id, passage.title, passage.text, dict(passage.attributes))


def message_of(passage: Passage) -> common_pb2.Passage:
    """Writes a passage."""
    return common_pb2.Passage(
        id=passage.id, title=passage.title, text=passage.text, attributes=passage.attributes
    )
