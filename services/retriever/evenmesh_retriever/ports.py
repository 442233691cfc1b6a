"""Define what the retriever's engine needs, and what back-ends provide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, TypeVar

from evenmesh_retriever.domain import (
    CollectionInfo,
    DeleteReport,
    Filter,
    IngestReport,
    IntArray,
    Lexical,
    Passage,
    RetrieverInfo,
    Scored,
    Unranked,
    VectorArray,
)
from evenmesh_retriever.steps import Steps

Q = TypeVar("Q", contravariant=True)
V = TypeVar("V", covariant=True)
Key = tuple[str, str]
"""A tenant, and the name of one of its collections."""


class Analyzer(Protocol):
    """Splits text into tokens."""

    @property
    def name(self) -> str:
        """Name and version: two analyzers of one name give the same tokens."""

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text, in order, repetitions included."""


class TextEncoder(Protocol[V]):
    """Turns text into what it is searched by. Called from several threads at once."""

    name: str
    """Name of the model, for people."""
    fingerprint: str
    """Names the weights: vectors of two encoders may be compared only if it is equal."""
    device: str
    """``cpu``, ``cuda:0``, or the address of a server."""
    max_tokens: int
    """Tokens that are read of a text, [1, inf); the rest is cut off."""

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the tokens that the model reads of passages encoded together, padding included."""

    def encode_query(self, text: str) -> V:
        """Return the vector of one query: the same whatever else is encoded at the time."""


class Encoder(TextEncoder[VectorArray], Protocol):
    """Turns text into vectors of length 1."""

    dimension: int
    """Length of the vectors."""
    precision: str
    """``fp32`` or ``bf16``."""

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """Return the vectors of passages, ``[len(texts), dimension]``; equal texts get equal vectors.

        ``progress`` is called with the number of texts done, after each batch; what it raises ends the work.
        """


class Index(Protocol[Q]):
    """Passages of a collection by their terms, their vectors, or the weights of their terms."""

    def search(self, query: Q, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` of the passages that may be found, or all of them.

        Args:
            query: tokens, a vector, or weights of terms.
            n: from 1.
            where: which passages may be found; None for all.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """

    def scores(self, query: Q, where: Filter | None = None) -> Unranked:
        """Return all allowed passages, none left out by an index; raises as :meth:`search`."""


class Snapshot(Protocol):
    """One version of a collection; it never changes. Its passages have rows, not all rows a passage."""

    @property
    def info(self) -> CollectionInfo:
        """The collection at this version."""

    def __len__(self) -> int:
        """Return passages in it."""

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        """Return the passages of some rows."""

    def pages(self, size: int, prefix: str = "") -> Iterator[Sequence[Passage]]:
        """Return the passages whose ids begin with ``prefix`` by ascending id, at most ``size`` at a time.

        Raises:
            Unavailable: what keeps them has no versions to read from, and they were changed meanwhile.
        """

    def passages_of(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages of some ids, in no particular order; unknown ids are left out."""

    def by_id(self, rows: IntArray) -> IntArray:
        """Return some rows, by ascending passage id."""

    def places(self, rows: IntArray) -> IntArray:
        """Return numbers of some rows that ascend as their passage ids do, ``[len(rows)]``."""


class Retriever(Protocol):
    """A way to score passages for a query. Its methods compute: they run in threads, several at once."""

    info: RetrieverInfo
    """What it is and runs on."""

    def prepare(self, snapshot: Snapshot) -> None:
        """Build what searching ``snapshot`` needs, before the first query pays for it."""

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` passages of a collection that may be found, or all of them.

        Args:
            snapshot: the collection.
            query: the query.
            n: from 1.
            where: which passages may be found; None for all. Applied before ranking.

        Raises:
            FailedPrecondition: the snapshot lacks what this retriever needs.
            InvalidField: no passage has an attribute of the filter.
        """

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """Return every passage of a collection that may be found: those of :meth:`search`, and their scores.

        Takes a few numbers for each passage of memory, and time in step with the collection.

        Raises:
            FailedPrecondition: the snapshot lacks what this retriever needs, or is kept where not every
                passage can be scored.
            InvalidField: no passage has an attribute of the filter.
        """

    def note(self, snapshot: Snapshot) -> str:
        """Return one line on what an answer from ``snapshot`` lacks or does otherwise; empty if nothing."""

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages, ranked by what they say of the query and of each other.

        Args:
            passages: 1 or more, by ascending id.
            query: the query.
        """

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work of :meth:`rank`, in the unit of :mod:`evenmesh_retriever.cost`.

        Args:
            sizes: what the passages say. Bytes.
        """


class CollectionStore(ABC):
    """Everyone's collections on whatever keeps them. Methods are called on the event loop.

    A key is a tenant, which anyone may be, and the name of one of its collections.
    """

    def of(self, tenant: str) -> TenantCollections:
        """Return those of one tenant."""
        return TenantCollections(self, tenant)

    async def refresh(self) -> None:
        """Read the current state where other processes change it, so that descriptions are up to date."""
        return

    def check_writable(self) -> None:
        """Raise FailedPrecondition, which says who takes writes, where another process writes them."""
        return

    def as_of(self, key: Key) -> datetime | None:
        """Return when the version served was last known to be the current one; None where it always is."""
        return None

    @abstractmethod
    def lease(self, key: Key) -> AbstractContextManager[Snapshot]:
        """Return the version served now, kept for as long as the block runs.

        Raises:
            NotFound: no such collection, field ``collection``; where it takes a call to elsewhere to know, it
                is the first use of the snapshot that raises this.
        """

    @abstractmethod
    def describe(self, key: Key) -> CollectionInfo:
        """Return one collection. Raises NotFound, field ``name``."""

    @abstractmethod
    def list(self, tenant: str) -> Sequence[CollectionInfo]:
        """Return all collections of a tenant that can be read, by ascending name."""

    @abstractmethod
    def everyones(self) -> Sequence[tuple[str, CollectionInfo]]:
        """Return the collections of all with their tenants; may be called from any thread."""

    @abstractmethod
    async def create(self, key: Key, description: str, lexical: Lexical) -> CollectionInfo:
        """Return a new, empty collection.

        Raises:
            AlreadyExists: the name is taken, field ``name``.
            InvalidField: no such analyzer.
        """

    @abstractmethod
    async def ingest(self, key: Key, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Add or replace passages, all or none; durable and served when it returns.

        A passage already stored, equal in every field, changes nothing. Vectors of many passages may follow:
        see ``CollectionInfo.embedded``.

        Raises:
            NotFound: no such collection and ``create`` is false, field ``collection``.
            MeshError: RESOURCE_EXHAUSTED, more than the tenant may hold.
        """

    @abstractmethod
    async def delete_passages(self, key: Key, ids: Sequence[str]) -> DeleteReport:
        """Remove passages by id. Raises NotFound, field ``collection``."""

    @abstractmethod
    async def drop(self, key: Key) -> None:
        """Remove a collection; its readers read on. Raises NotFound, field ``name``."""


class TenantCollections:
    """The collections of one tenant, by name: see :class:`CollectionStore`.

    Args:
        store: the collections of all.
        tenant: whose are meant.
    """

    def __init__(self, store: CollectionStore, tenant: str) -> None:
        self._store = store
        self.tenant = tenant

    def lease(self, name: str) -> AbstractContextManager[Snapshot]:
        """Return the version served now, kept for as long as the block runs."""
        return self._store.lease((self.tenant, name))

    def describe(self, name: str) -> CollectionInfo:
        """Return one collection."""
        return self._store.describe((self.tenant, name))

    def list(self) -> Sequence[CollectionInfo]:
        """Return all collections that can be read, by ascending name."""
        return self._store.list(self.tenant)

    async def create(self, name: str, description: str, lexical: Lexical) -> CollectionInfo:
        """Return a new, empty collection."""
        return await self._store.create((self.tenant, name), description, lexical)

    async def ingest(self, name: str, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Add or replace passages, all or none."""
        return await self._store.ingest((self.tenant, name), passages, create=create)

    async def delete_passages(self, name: str, ids: Sequence[str]) -> DeleteReport:
        """Remove passages by id."""
        return await self._store.delete_passages((self.tenant, name), ids)

    async def drop(self, name: str) -> None:
        """Remove a collection."""
        await self._store.drop((self.tenant, name))


class CannotStart(Exception):  # noqa: N818 - a state, reported to the operator
    """A backend cannot be used; the message is one line that says what to do."""

    @classmethod
    def without_model(cls, setting: str, model: str) -> CannotStart:
        """Return the error of a setting that names a model which is not on this machine."""
        return cls(
            f"{setting}={model!r}: no such folder, and not in the local Hugging Face cache: give a folder, "
            f"or fetch the model with `hf download {model}`"
        )
