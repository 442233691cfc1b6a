"""The retriever's use case: score, make a pool, rank it once or draw rankings of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import InvalidField, NotFound
from meshkit.telemetry import Telemetry
from services.retriever.domain import Draw, Filter, Passage, Query, Retrieval, RetrieverInfo, Scored
from services.retriever.metrics import RetrieverMetrics
from services.retriever.ports import Retriever, Snapshot, Tenants
from services.retriever.ranking import drawn_from_all, ranked

DEFAULT_DEPTH: Final = 100
"""Pool of a request that names none, over a collection. Unit: passages."""
DEFAULT_K: Final = 5
"""Most positions per ranking of a request that names none."""
_NOTHING: Final = Scored(np.empty(0, dtype=np.int64), np.empty(0))


class RetrieverEngine:
    """Answers queries.

    Args:
        store: the collections of all tenants.
        retrievers: by name, in the order they are listed.
        default: name of the one to use when a request names none.
        pool: threads that compute.
        admission: counts texts: one for each query, one for each candidate sent along.
        metrics: records searches; None records nothing.
    """

    def __init__(
        self,
        store: Tenants,
        retrievers: Mapping[str, Retriever],
        default: str,
        pool: ComputePool,
        admission: Admission,
        metrics: RetrieverMetrics | None = None,
    ) -> None:
        self._store = store
        self._retrievers = retrievers
        self._default = default
        self._pool = pool
        self._admission = admission
        self._metrics = metrics or RetrieverMetrics(Telemetry.disabled())

    def list(self) -> list[tuple[RetrieverInfo, bool]]:
        """The retrievers and whether each is the default, the default first."""
        infos = [(retriever.info, name == self._default) for name, retriever in self._retrievers.items()]
        return sorted(infos, key=lambda entry: not entry[1])

    async def retrieve(self, query: Query) -> Retrieval:
        """Answers one query.

        Raises:
            NotFound: no such retriever or collection.
            FailedPrecondition: the collection lacks what the retriever needs, or is to be drawn from as a
                whole and is kept where not every passage can be scored.
            InvalidField: ``k`` above ``depth`` or the number of candidates, or a filter on an attribute that
                no passage has.
            Overloaded: too much work is in flight.
        """
        name = query.retriever or self._default
        retriever = self._retrievers.get(name)
        if retriever is None:
            raise NotFound(
                "retriever", f"there is no {name!r}; this server has {', '.join(self._retrievers)}"
            )
        async with self._admission.admit(1 + len(query.candidates or ())):
            if query.candidates is not None:
                depth, k = _sizes(query, len(query.candidates))
                find = partial(_over_candidates, self._metrics, retriever, query, query.candidates, depth, k)
                return await self._pool.run(self._metrics.searched, name, query, find)
            if query.whole and query.draw is not None:
                with self._store.of(query.tenant).lease(query.collection) as snapshot:
                    find = partial(_over_everything, self._metrics, retriever, query, query.draw, snapshot)
                    return await self._pool.run(self._metrics.searched, name, query, find)
            depth, k = _sizes(query, None)
            with self._store.of(query.tenant).lease(query.collection) as snapshot:
                find = partial(_over_collection, self._metrics, retriever, query, snapshot, depth, k)
                return await self._pool.run(self._metrics.searched, name, query, find)


def _sizes(query: Query, candidates: int | None) -> tuple[int, int]:
    """The pool's size and the rankings' length as asked for; what there is may be less."""
    depth = query.depth or (DEFAULT_DEPTH if candidates is None else candidates)
    k = query.k or min(DEFAULT_K, depth)
    if k > depth:
        raise InvalidField("k", f"must be at most depth, which is {depth}, got {k}")
    if candidates is not None and query.k is not None and query.k > candidates:
        raise InvalidField("k", f"must be at most the number of candidates, which is {candidates}, got {k}")
    return depth, k


def _over_collection(
    metrics: RetrieverMetrics, retriever: Retriever, query: Query, snapshot: Snapshot, depth: int, k: int
) -> Retrieval:
    pool = retriever.search(snapshot, query.text, depth, query.filter)
    with metrics.sampling(retriever.info.name, query):
        shown, rankings, log_probabilities, inclusion = ranked(query, pool, k)
    return Retrieval(
        passages=snapshot.passages(pool.rows[:shown].tolist()),
        scores=pool.scores[:shown],
        rankings=rankings,
        log_probabilities=log_probabilities,
        inclusion=inclusion,
        version=snapshot.info.version,
        retriever=retriever.info.name,
        note=retriever.note(snapshot),
    )


def _over_everything(
    metrics: RetrieverMetrics, retriever: Retriever, query: Query, draw: Draw, snapshot: Snapshot
) -> Retrieval:
    found = retriever.scores(snapshot, query.text, query.filter)
    with metrics.sampling(retriever.info.name, query):
        shown, rankings, log_probabilities, inclusion = drawn_from_all(
            query, draw, found, query.k or DEFAULT_K, snapshot.places
        )
    return Retrieval(
        passages=snapshot.passages(shown.rows.tolist()),
        scores=shown.scores,
        rankings=rankings,
        log_probabilities=log_probabilities,
        inclusion=inclusion,
        version=snapshot.info.version,
        retriever=retriever.info.name,
        note=retriever.note(snapshot),
    )


def _over_candidates(
    metrics: RetrieverMetrics,
    retriever: Retriever,
    query: Query,
    candidates: Sequence[Passage],
    depth: int,
    k: int,
) -> Retrieval:
    by_id = sorted(_found(candidates, query.filter), key=lambda passage: passage.id)
    everything = retriever.rank(by_id, query.text) if by_id else _NOTHING
    pool = Scored(everything.rows[:depth], everything.scores[:depth])
    with metrics.sampling(retriever.info.name, query):
        shown, rankings, log_probabilities, inclusion = ranked(query, pool, k)
    return Retrieval(
        passages=[by_id[row] for row in pool.rows[:shown].tolist()],
        scores=pool.scores[:shown],
        rankings=rankings,
        log_probabilities=log_probabilities,
        inclusion=inclusion,
        version="",
        retriever=retriever.info.name,
    )


def _found(candidates: Sequence[Passage], where: Filter | None) -> Sequence[Passage]:
    """Candidates that may be found."""
    if where is None:
        return candidates
    for number, condition in enumerate(where.conditions):
        if not any(condition.attribute in passage.attributes for passage in candidates):
            raise InvalidField(
                f"filter.conditions[{number}].attribute",
                f"no candidate has an attribute {condition.attribute!r}",
            )
    return [passage for passage in candidates if where.allows(passage.attributes)]
