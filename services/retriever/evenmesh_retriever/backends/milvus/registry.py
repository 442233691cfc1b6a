"""Record which collections exist in Milvus, and the version of each."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from evenmesh_retriever.backends.milvus import schema
from evenmesh_retriever.backends.milvus.connection import Connection
from evenmesh_retriever.backends.milvus.expressions import one_of
from evenmesh_retriever.domain import CollectionInfo, Lexical
from evenmesh_retriever.ports import Key

DenseKind = Literal["FLAT", "HNSW", "AUTOINDEX"]

_PLACE: Final = "evenmesh_collections"
_PAGE: Final = 1_000


class Record(BaseModel):
    """One collection, as Milvus records it."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    name: str
    place: str
    """Its name in Milvus, which no other collection has had."""
    generation: int = 1
    """Rises with every change."""
    changing: bool = False
    """Whether a change has begun and not ended; one that was cut off leaves it so."""
    description: str = ""
    analyzer: str = "unicode"
    k1: float
    """BM25's k1 as Milvus has it."""
    b: float
    """BM25's b as Milvus has it."""
    given_k1: float | None = None
    given_b: float | None = None
    num_passages: int = 0
    passage_bytes: int = 0
    encoder: str = ""
    encoder_fingerprint: str = ""
    sparse: str = ""
    sparse_fingerprint: str = ""
    dense_index: DenseKind | None = None
    updated_at: datetime

    @classmethod
    def new(cls, key: Key, **fields: Any) -> Record:
        """Return the record of a collection to be."""
        return cls(
            tenant=key[0],
            name=key[1],
            place=f"evenmesh_{secrets.token_hex(8)}",
            updated_at=datetime.now(UTC),
            **fields,
        )

    @property
    def key(self) -> Key:
        """Tenant and name."""
        return self.tenant, self.name

    @property
    def version(self) -> str:
        """Names what it holds: of two collections, and of two states of one, no two are equal."""
        return f"{self.place.removeprefix('evenmesh_')[:8]}-{self.generation:08d}"

    def begun(self) -> Record:
        """Return the record during a change."""
        return self.model_copy(update={"generation": self.generation + 1, "changing": True})

    def ended(self, num_passages: int, passage_bytes: int) -> Record:
        """Return the record after the change."""
        return self.model_copy(
            update={
                "changing": False,
                "num_passages": num_passages,
                "passage_bytes": passage_bytes,
                "updated_at": datetime.now(UTC),
            }
        )

    def info(self) -> CollectionInfo:
        """Return the description."""
        return CollectionInfo(
            name=self.name,
            version=self.version,
            num_passages=self.num_passages,
            size_bytes=self.passage_bytes,
            encoder=self.encoder,
            updated_at=self.updated_at,
            description=self.description,
            analyzer=f"milvus-{self.analyzer}",
            lexical=Lexical(self.analyzer, self.given_k1, self.given_b),
            dense_kind=(self.dense_index or "").lower(),
            # An index that compares with every vector misses none.
            dense_recall=1.0 if self.dense_index == "FLAT" else None,
            embedded=1.0 if self.encoder else 0.0,
            warning="a change is under way, or was cut off: then the same ingest or deletion ends it"
            if self.changing
            else "",
        )


class Registry:
    """The records, in a separate collection.

    Args:
        connection: to the Milvus.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def open(self) -> None:
        """Make that collection, if it is not there."""
        if not self._connection.has(_PLACE):
            self._connection.create(_PLACE, *schema.records())

    def read(self, key: Key) -> Record | None:
        """Return the record of a collection; None if there is no such collection."""
        found = self._connection.query(_PLACE, one_of(schema.KEY, [_joined(key)]), [schema.RECORD], most=1)
        return Record.model_validate_json(found[0][schema.RECORD]) if found else None

    def list(self) -> list[Record]:
        """Return all records, by tenant and name."""
        pages = self._connection.pages(_PLACE, schema.KEY, [schema.KEY, schema.RECORD], _PAGE)
        records = [Record.model_validate_json(row[schema.RECORD]) for page in pages for row in page]
        return sorted(records, key=lambda record: record.key)

    def write(self, record: Record) -> None:
        """Add or replaces a record."""
        self._connection.upsert(_PLACE, [schema.record_row(_joined(record.key), record.model_dump_json())])

    def remove(self, key: Key) -> None:
        """Remove a record."""
        self._connection.delete(_PLACE, one_of(schema.KEY, [_joined(key)]))


def _joined(key: Key) -> str:
    return "/".join(key)
