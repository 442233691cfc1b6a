"""Collections of passages, as the mesh describes them."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection as it is served now.

    Attributes:
        name: 1 to 64 of a-z, 0-9, ``-`` and ``_``, starting with a letter or digit.
        version: changes with every ingest or delete.
        num_passages: passages in it.
        size_bytes: size on disk of the served version.
        encoder: encoder that embedded it; empty if it has no dense index.
        analyzer: analyzer of its BM25 index.
        description: free text given at creation.
        updated_at: when this version was made, UTC.
    """

    name: str
    version: str
    num_passages: int
    size_bytes: int
    encoder: str
    analyzer: str
    description: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest did; durable by the time it is returned.

    Attributes:
        collection: the collection afterwards.
        added: passages that were new.
        replaced: passages that replaced one of the same id.
        unchanged: passages that were there already, equal in every field.
    """

    collection: Collection
    added: int
    replaced: int
    unchanged: int
