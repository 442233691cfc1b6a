"""Answer queries: score, make a pool, rank it once or draw rankings of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from evenmesh.wire.errors import InvalidField, MeshError, NotFound
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_retriever import cost
from evenmesh_retriever.domain import Draw, Filter, Passage, Query, Retrieval, RetrieverInfo, Scored
from evenmesh_retriever.metrics import RetrieverMetrics
from evenmesh_retriever.ports import CollectionStore, Retriever, Snapshot
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.ranking import drawn_from_all, ranked
from evenmesh_retriever.steps import Steps, at_once, run

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
        admission: bounds the work of queries.
        metrics: records searches; None records nothing.
    """

    def __init__(
        self,
        store: CollectionStore,
        retrievers: Mapping[str, Retriever],
        default: str,
        pool: ComputePool,
        admission: QueryAdmission,
        metrics: RetrieverMetrics | None = None,
    ) -> None:
        self._store = store
        self._retrievers = retrievers
        self._default = default
        self._pool = pool
        self._admission = admission
        self._metrics = metrics or RetrieverMetrics(Telemetry.disabled())

    def list(self) -> list[tuple[RetrieverInfo, bool]]:
        """Return the retrievers and whether each is the default, the default first."""
        infos = [(retriever.info, name == self._default) for name, retriever in self._retrievers.items()]
        return sorted(infos, key=lambda entry: not entry[1])

    async def retrieve(self, query: Query) -> Retrieval:
        """Return answers one query.

        Raises:
            NotFound: no such retriever or collection.
            FailedPrecondition: the collection lacks what the retriever needs, or is to be drawn from as a
                whole and is kept where not every passage can be scored.
            InvalidField: ``k`` above ``depth`` or the number of candidates, or a filter on an attribute that
                no passage has.
            MeshError: RESOURCE_EXHAUSTED, it asks for more work than a query may.
            Overloaded: too much work is in flight.
        """
        name = query.retriever or self._default
        retriever = self._retriever(query)
        if query.candidates is not None:
            depth, k = _sizes(query, len(query.candidates))
            self._check_candidates(retriever, query, depth, k)
            async with self._admission.admit(_work_of_candidates(retriever, query, depth, k)):
                found = _over_candidates(self._metrics, retriever, query, query.candidates, depth, k)
                return await self._searched(name, query, found, self._check_tokens)
        depth, k = (0, query.k or DEFAULT_K) if query.whole else _sizes(query, None)
        work = self._work_over_collection(retriever, query, depth, k)
        async with self._admission.admit(work):
            key = query.tenant, query.collection
            with self._store.lease(key) as snapshot:
                # Now: a version that is replaced while it is searched was current when it was asked.
                as_of = self._store.as_of(key)
                if query.whole and query.draw is not None:
                    find = partial(_over_everything, self._metrics, retriever, query, query.draw, snapshot)
                else:
                    find = partial(_over_collection, self._metrics, retriever, query, snapshot, depth, k)
                answer = await self._searched(name, query, at_once(find))
                return replace(answer, as_of=as_of)

    def num_fitting(self, query: Query) -> int:
        """Return how many candidates, from the first, fit the work that a query may ask for.

        Raises:
            NotFound: no such retriever.
        """
        retriever = self._retriever(query)
        candidates = query.candidates or ()
        if self._fits(retriever, query, len(candidates)):
            return len(candidates)
        return bisect_right(
            range(len(candidates)), False, key=lambda number: not self._fits(retriever, query, number + 1)
        )

    def _fits(self, retriever: Retriever, query: Query, number: int) -> bool:
        sizes = _bytes_of(query)[:number]
        return _work_of_candidates(retriever, replace(query, sizes=sizes), number, query.k or DEFAULT_K) <= (
            self._admission.most
        )

    def _retriever(self, query: Query) -> Retriever:
        retriever = self._retrievers.get(query.retriever or self._default)
        if retriever is None:
            raise NotFound(
                "retriever",
                f"there is no retriever {query.retriever!r}; this server has {', '.join(self._retrievers)}",
            )
        return retriever

    def _check_candidates(self, retriever: Retriever, query: Query, depth: int, k: int) -> None:
        """Refuse a query over candidates that asks for too much; say what would fit."""
        work = _work_of_candidates(retriever, query, depth, k)
        if work <= self._admission.most:
            return
        if query.draw is not None and cost.sampling(query.draw, depth, k) > self._admission.most // 2:
            self._admission.check(work, "sampling.num_rankings", "draw fewer or shorter rankings")
        fitting = self.num_fitting(query)
        self._admission.check(
            work,
            "candidates.passages",
            f"about {fitting} of these {len(query.candidates or ())} passages fit {retriever.info.name!r}; "
            "send fewer or shorter ones, or name a bm25 retriever",
        )

    def _work_over_collection(self, retriever: Retriever, query: Query, depth: int, k: int) -> int:
        """Return the work of a query over a collection, which is not too much."""
        try:
            info = self._store.describe((query.tenant, query.collection))
            size, segments = info.num_passages, info.num_segments
        except MeshError:
            size = segments = 0  # leasing it says what is wrong
        asking = 1 + retriever.work([len(query.text.encode())]) + cost.holding(query.held_bytes)
        searching = cost.query(query.text, size, segments) + (cost.scoring(size) if query.whole else 0)
        self._admission.check(
            asking + searching, "query", f"ask in fewer words of the {size} passages of this collection"
        )
        if query.filter is not None:
            searching += cost.filtering(query.filter, size, segments)
            self._admission.check(
                asking + searching,
                "filter.conditions",
                f"name fewer values, or ask in fewer words of the {size} passages of this collection",
            )
        drawing = _drawing(query, size if query.whole else depth, k)
        self._admission.check(
            asking + searching + drawing,
            "sampling.num_rankings",
            "draw fewer or shorter rankings, or draw them from a pool (depth) without "
            "include_inclusion_probabilities",
        )
        return asking + searching + drawing

    def _check_tokens(self, tokens: int) -> None:
        """Refuse to encode more tokens than a query may have: the sizes of candidates only estimate them."""
        self._admission.check_read(tokens, "candidates.passages", "send fewer or shorter passages")

    async def _searched(
        self, name: str, query: Query, found: Steps[Retrieval], check: Callable[[int], None] = lambda _: None
    ) -> Retrieval:
        return await self._metrics.searched(name, query, partial(run, self._pool, found, check))


def _work_of_candidates(retriever: Retriever, query: Query, depth: int, k: int) -> int:
    asking = retriever.work([len(query.text.encode())]) + cost.holding(query.held_bytes)
    return 1 + asking + retriever.work(_bytes_of(query)) + _drawing(query, depth, k)


def _drawing(query: Query, size: int, k: int) -> int:
    """Return the work of drawing rankings of ``size`` passages as a query wants them."""
    if query.draw is None:
        return 0
    exact = cost.inclusion(size, k) if query.with_inclusion else 0
    if query.draw.target is not None:
        exact += cost.targeting(size, k)
    return cost.sampling(query.draw, size, k) + exact


def _bytes_of(query: Query) -> Sequence[int]:
    return query.sizes or [passage.num_bytes for passage in query.candidates or ()]


def _sizes(query: Query, candidates: int | None) -> tuple[int, int]:
    """Return the requested size of the pool and length of rankings; fewer passages may exist."""
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
        found = ranked(
            query, pool, k, lambda: [one.attributes for one in snapshot.passages(pool.rows.tolist())]
        )
    return Retrieval(
        passages=snapshot.passages(pool.rows[: found.shown].tolist()),
        scores=pool.scores[: found.shown],
        rankings=found.rankings,
        log_probabilities=found.log_probabilities,
        inclusion=found.inclusion,
        version=snapshot.info.version,
        retriever=retriever.info.name,
        note=retriever.note(snapshot),
        policy=found.policy,
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
) -> Steps[Retrieval]:
    by_id = sorted(_found(candidates, query.filter), key=lambda passage: passage.id)
    everything = (yield from retriever.rank(by_id, query.text)) if by_id else _NOTHING
    pool = Scored(everything.rows[:depth], everything.scores[:depth])
    with metrics.sampling(retriever.info.name, query):
        found = ranked(query, pool, k, lambda: [by_id[row].attributes for row in pool.rows.tolist()])
    return Retrieval(
        passages=[by_id[row] for row in pool.rows[: found.shown].tolist()],
        scores=pool.scores[: found.shown],
        rankings=found.rankings,
        log_probabilities=found.log_probabilities,
        inclusion=found.inclusion,
        version="",
        retriever=retriever.info.name,
        policy=found.policy,
    )


def _found(candidates: Sequence[Passage], where: Filter | None) -> Sequence[Passage]:
    """Return candidates that may be found."""
    if where is None:
        return candidates
    for number, condition in enumerate(where.conditions):
        if not any(condition.attribute in passage.attributes for passage in candidates):
            raise InvalidField(
                f"filter.conditions[{number}].attribute",
                f"no candidate has an attribute {condition.attribute!r}",
            )
    return [passage for passage in candidates if where.allows(passage.attributes)]
