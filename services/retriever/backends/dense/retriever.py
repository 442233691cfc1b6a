"""Dense retrieval behind the retriever port."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from meshkit.errors import FailedPrecondition
from services.retriever.backends.dense import flat
from services.retriever.domain import Passage, RetrieverInfo, Scored, VectorArray
from services.retriever.ports import Encoder, Snapshot, VectorIndex


@runtime_checkable
class HasVectors(Protocol):
    """A snapshot that keeps the vectors of its passages."""

    @property
    def encoder_fingerprint(self) -> str:
        """The encoder that made them; empty where there are none."""

    @property
    def vectors(self) -> VectorArray | None:
        """Vectors of length 1, ``[n, d]``."""


class DenseRetriever:
    """Inner products of vectors of length 1, which are cosines.

    Args:
        info: what it is.
        encoder: makes the vectors of queries, and of passages sent along.
        index: makes the index of a collection.
        cache: queries whose vectors are kept, [0, inf).
    """

    def __init__(
        self,
        info: RetrieverInfo,
        encoder: Encoder,
        index: Callable[[VectorArray], VectorIndex],
        *,
        cache: int,
    ) -> None:
        self._info = info
        self._encoder = encoder
        self._index = index
        self._indexes: WeakKeyDictionary[Snapshot, VectorIndex] = WeakKeyDictionary()
        self._cache = cache
        self._vectors: OrderedDict[str, VectorArray] = OrderedDict()
        self._guard = Lock()

    @property
    def info(self) -> RetrieverInfo:
        """What it is and runs on."""
        return self._info

    def prepare(self, snapshot: Snapshot) -> None:
        """Makes the snapshot's index, if this encoder made its vectors."""
        if (
            isinstance(snapshot, HasVectors)
            and snapshot.vectors is not None
            and snapshot.encoder_fingerprint == self._encoder.fingerprint
        ):
            self._indexes[snapshot] = self._index(snapshot.vectors)

    def search(self, snapshot: Snapshot, query: str, n: int) -> Scored:
        """The best ``min(n, len(snapshot))`` passages.

        Raises:
            FailedPrecondition: the collection has no vectors of this encoder.
        """
        index = self._indexes.get(snapshot)
        if index is None:
            info = snapshot.info
            made = (
                f"was embedded by another encoder, {info.encoder!r}" if info.encoder else "has no dense index"
            )
            raise FailedPrecondition(
                "ENCODER_MISMATCH",
                f"collection {info.name!r} {made}, and this server runs {self._encoder.name!r}: ingest any "
                "passage to embed it anew, or use a bm25 retriever",
            )
        return index.search(self._vector(query), n)

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages, encoded now."""
        vectors = self._encoder.encode_passages([passage.content for passage in passages], lambda _: None)
        return flat.rank(vectors, self._vector(query))

    def _vector(self, query: str) -> VectorArray:
        with self._guard:
            if query in self._vectors:
                self._vectors.move_to_end(query)
                return self._vectors[query]
        vector = self._encoder.encode_query(query)
        with self._guard:
            self._vectors[query] = vector
            while len(self._vectors) > self._cache:
                self._vectors.popitem(last=False)
        return vector
