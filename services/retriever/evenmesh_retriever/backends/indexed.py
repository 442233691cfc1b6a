"""What retrievers have in common that index each snapshot and look queries up there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.compute.tenant_cache import TenantCache
from evenmesh_kit.security import caller as callers
from evenmesh_retriever.domain import Filter, RetrieverInfo, Scored, Unranked
from evenmesh_retriever.ports import Index, Snapshot, TextEncoder

Q = TypeVar("Q")


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


V = TypeVar("V", bound=_Sized)


class IndexedRetriever(ABC, Generic[Q]):
    """A retriever over an index of each snapshot; see the port.

    Args:
        info: what it is.
    """

    def __init__(self, info: RetrieverInfo) -> None:
        self.info = info
        self._indexes: WeakKeyDictionary[Snapshot, Index[Q]] = WeakKeyDictionary()

    def prepare(self, snapshot: Snapshot) -> None:
        """Make the snapshot's index, if it has what that takes."""
        index = self._indexed(snapshot)
        if index is not None:
            self._indexes[snapshot] = index

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` of the passages that may be found.

        Raises:
            FailedPrecondition: the snapshot has no index.
            InvalidField: no passage has an attribute of the filter.
        """
        return self._prepared(snapshot).search(self._asked(snapshot, query), n, where)

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """Return all passages that may be found; raises as :meth:`search`."""
        return self._prepared(snapshot).scores(self._asked(snapshot, query), where)

    def note(self, snapshot: Snapshot) -> str:
        """Nothing."""
        return ""

    @abstractmethod
    def _indexed(self, snapshot: Snapshot) -> Index[Q] | None:
        """Return an index of the snapshot; None if it lacks what that takes."""

    @abstractmethod
    def _asked(self, snapshot: Snapshot, query: str) -> Q:
        """Return what the index is asked for."""

    @abstractmethod
    def _lacking(self, snapshot: Snapshot) -> FailedPrecondition:
        """Return the error of a search where there is no index."""

    def _prepared(self, snapshot: Snapshot) -> Index[Q]:
        index = self._indexes.get(snapshot)
        if index is None:
            raise self._lacking(snapshot)
        return index


class QueryVectors(Generic[V]):
    """The vectors of queries, encoded once while they are kept.

    Args:
        encoder: makes them.
        most_bytes: most bytes of queries and vectors that are kept, [0, inf).
    """

    def __init__(self, encoder: TextEncoder[V], most_bytes: int) -> None:
        self._encoder = encoder
        self._cache: TenantCache[V] = TenantCache(most_bytes)

    def of(self, query: str) -> V:
        """Return the vector of the caller's query."""
        # By tenant: whether a query is answered at once must not tell what another tenant asked.
        tenant = callers.current().tenant
        vector = self._cache.get(tenant, query)
        if vector is None:
            vector = self._encoder.encode_query(query)
            self._cache.put(tenant, query, vector, len(query.encode()) + vector.nbytes)
        return vector
