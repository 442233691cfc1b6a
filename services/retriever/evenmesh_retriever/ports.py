"""Define what the retriever's engine needs, and what back-ends provide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NoReturn, Protocol, TypeVar, runtime_checkable

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


class Tenants(Protocol):
    """The collections of everyone."""

    def of(self, tenant: str) -> CollectionStore:
        """Return those of one tenant; anyone may be one."""


class CollectionStore(Protocol):
    """A tenant's collections on whatever keeps them. Methods are called on the event loop."""

    def lease(self, name: str) -> AbstractContextManager[Snapshot]:
        """Return the version served now, kept for as long as the block runs.

        Raises:
            NotFound: no such collection, field ``collection``; where it takes a call to elsewhere to know, it
                is the first use of the snapshot that raises this.
        """

    def describe(self, name: str) -> CollectionInfo:
        """Return one collection. Raises NotFound, field ``name``."""

    def list(self) -> list[CollectionInfo]:
        """Return all collections by ascending name."""

    async def create(self, name: str, description: str, lexical: Lexical) -> CollectionInfo:
        """Return a new, empty collection.

        Raises:
            AlreadyExists: the name is taken, field ``name``.
            InvalidField: no such analyzer.
        """

    async def ingest(self, name: str, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Add or replaces passages, all or none; durable and served when it returns.

        Vectors of many passages may follow: see ``CollectionInfo.embedded``.

        Raises:
            NotFound: no such collection and ``create`` is false, field ``collection``.
            MeshError: RESOURCE_EXHAUSTED, more than the tenant may hold.
        """

    async def delete_passages(self, name: str, ids: Sequence[str]) -> DeleteReport:
        """Remove passages by id. Raises NotFound, field ``collection``."""

    async def drop(self, name: str) -> None:
        """Remove a collection. Raises NotFound, field ``name``."""


@runtime_checkable
class Shared(Protocol):
    """A store whose collections other processes change too."""

    async def refresh(self) -> None:
        """Read the current state, so that descriptions are up to date."""


@runtime_checkable
class ReadReplica(Protocol):
    """A tenant's collections that another process writes, and this one may not."""

    def as_of(self, name: str) -> datetime:
        """Return when the version served was last known to be the current one."""

    def refuse(self) -> NoReturn:
        """Refuse a write.

        Raises:
            FailedPrecondition: always; says who takes writes.
        """


class CannotStart(Exception):  # noqa: N818 - a state, reported to the operator
    """A backend cannot be used; the message is one line that says what to do."""

    @classmethod
    def without_model(cls, setting: str, model: str) -> CannotStart:
        """Return the error of a setting that names a model which is not on this machine."""
        return cls(
            f"{setting}={model!r}: no such folder, and not in the local Hugging Face cache: give a folder, "
            f"or fetch the model with `hf download {model}`"
        )
