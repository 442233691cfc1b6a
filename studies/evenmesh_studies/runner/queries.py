"""Queries of a file as a mesh takes them."""

import hashlib
from pathlib import Path

from evenmesh.types.passage import Passage
from evenmesh_lab.files import Query

_LONGEST_ID_BYTES = 128


def identifier(query_id: str) -> str:
    """Return the id that a mesh takes for a query: the id itself, or its SHA-256 beyond 128 bytes."""
    if len(query_id.encode()) <= _LONGEST_ID_BYTES:
        return query_id
    return f"sha256:{hashlib.sha256(query_id.encode()).hexdigest()}"


def own_passages(query: Query) -> list[Passage]:
    """Return the passages that a query brings."""
    return [Passage(one.id, one.text, one.title, one.attributes) for one in query.passages]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
