"""Collections of passages, as the mesh describes them."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Lexical:
    """How the text of a collection is indexed for BM25; fixed for as long as it exists.

    Attributes:
        analyzer: ``unicode``, ``whitespace`` or ``english``; empty for the server's default.
        k1: BM25's k1, 0 to 10; None for the retriever's own.
        b: BM25's b, 0 to 1; None for the retriever's own.
    """

    analyzer: str = ""
    k1: float | None = None
    b: float | None = None

    def agrees_with(self, other: "Lexical") -> bool:
        """Return whether ``other`` has the values given here; a value left open agrees with any."""
        return (
            self.analyzer in ("", other.analyzer)
            and self.k1 in (None, other.k1)
            and self.b in (None, other.b)
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """The current state of a collection.

    Attributes:
        name: 1 to 64 of a-z, 0-9, ``-`` and ``_``, starting with a letter or digit.
        version: changes with every ingest or delete.
        num_passages: passages in it.
        size_bytes: size on disk of the served version.
        encoder: encoder that embedded it; empty if it has no dense index.
        analyzer: analyzer of its BM25 index.
        description: free text given at creation.
        updated_at: when this version was made, UTC.
        lexical: how its text is indexed.
        dense_kind: kind of its largest dense index: ``flat``, ``hnsw`` or ``ivf-pq``; empty without one.
        dense_recall: recall@100 of that index against ``flat``, measured when it was built; None without one.
        num_segments: segments it consists of.
        num_tombstones: passages that were removed or replaced and are still on disk.
        embedded: share of its passages that have a vector, 0 to 1.
        as_of: when a read replica last knew this version to be the current one, UTC; None from the retriever
            that writes, whose version is.
    """

    name: str
    version: str
    num_passages: int
    size_bytes: int
    encoder: str
    analyzer: str
    description: str
    updated_at: datetime
    lexical: Lexical = Lexical()
    dense_kind: str = ""
    dense_recall: float | None = None
    num_segments: int = 0
    num_tombstones: int = 0
    embedded: float = 0.0
    as_of: datetime | None = None

    @property
    def lacks_vectors(self) -> bool:
        """Return whether passages are still to get their vectors."""
        return bool(self.encoder) and self.embedded < 1


@dataclass(frozen=True, slots=True)
class Ingested:
    """Result of an ingest; its passages are durable when it is returned.

    Attributes:
        collection: the collection afterwards.
        added: passages that were new.
        replaced: passages that replaced one of the same id.
        unchanged: passages already stored, equal in every field.
    """

    collection: Collection
    added: int
    replaced: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """Result of a removal of passages; it is durable when it is returned.

    Attributes:
        collection: the collection afterwards.
        deleted: passages that were removed.
        missing: ids that the collection does not have.
    """

    collection: Collection
    deleted: int
    missing: int
