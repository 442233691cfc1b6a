"""Dense retrieval behind the retriever port."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from weakref import WeakKeyDictionary

from meshkit.errors import FailedPrecondition
from services.retriever.backends.dense import flat
from services.retriever.domain import Filter, Passage, RetrieverInfo, Scored, Unranked, VectorArray
from services.retriever.ports import Encoder, Snapshot, VectorIndex


class DenseRetriever:
    """Inner products of vectors of length 1, which are cosines.

    Args:
        info: what it is.
        encoder: makes the vectors of queries, and of passages sent along.
        index: makes the index of a collection from the vectors of the encoder of that fingerprint; None if
            there are none.
        cache: queries whose vectors are kept, [0, inf).
    """

    def __init__(
        self,
        info: RetrieverInfo,
        encoder: Encoder,
        index: Callable[[Snapshot, str], VectorIndex | None],
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
        """Makes the snapshot's index, if it has vectors by this encoder."""
        index = self._index(snapshot, self._encoder.fingerprint)
        if index is not None:
            self._indexes[snapshot] = index

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """The best ``n`` of the passages that may be found and have a vector.

        Raises:
            FailedPrecondition: no passage has a vector by this encoder yet.
            InvalidField: no passage has an attribute of the filter.
        """
        return self._prepared(snapshot).search(self._vector(query), n, where)

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """All passages that may be found and have a vector; raises as :meth:`search`.

        Every vector is read and compared, whatever index there is.
        """
        return self._prepared(snapshot).scores(self._vector(query), where)

    def note(self, snapshot: Snapshot) -> str:
        """How many passages have a vector, if not all have."""
        embedded = snapshot.info.embedded
        return "" if embedded >= 1 else f"{embedded:.1%} of the passages have a vector yet"

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages, encoded now."""
        vectors = self._encoder.encode_passages([passage.content for passage in passages], lambda _: None)
        return flat.rank(vectors, self._vector(query))

    def _prepared(self, snapshot: Snapshot) -> VectorIndex:
        index = self._indexes.get(snapshot)
        if index is None:
            raise FailedPrecondition(
                "NOT_EMBEDDED",
                f"no passage of collection {snapshot.info.name!r} has a vector of {self._encoder.name!r} "
                "yet: they are being made, see GetCollection; until then use a bm25 retriever",
            )
        return index

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
