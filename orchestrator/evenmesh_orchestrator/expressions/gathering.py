"""The sources of an expression, asked concurrently, and their passages in one pool."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.wire.errors import MeshError
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, attempt
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.domain import Ask, Degraded, Pool
from evenmesh_orchestrator.expressions.notation import PARAMETRIC_KNOWLEDGE
from evenmesh_orchestrator.expressions.sources import KNOWLEDGE_DEPTH, Place, ResolvedExpression
from evenmesh_orchestrator.ports import Generator, Retriever

T = TypeVar("T")

_MAX_VERSION_BYTES: Final = 256
# Fields of a request to a source that come from the settings, not from the caller.
_SET_BY_SETTINGS: Final = frozenset({"collection", "web", "retriever", "depth", "k"})


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the sources of an expression found.

    Attributes:
        expression: the expression.
        pool: every passage once, in the order of the sources.
        rows: the list of each source that answered, by name, as indices into the pool.
        scores: of the passages in it, in the source's unit.
        degradations: the sources that failed.
    """

    expression: ResolvedExpression
    pool: Pool
    rows: Mapping[str, IntArray]
    scores: Mapping[str, FloatArray]
    degradations: Sequence[Degraded]


async def gather(
    ask: Ask, expression: ResolvedExpression, clock: Clock, retriever: Retriever, generator: Generator
) -> Gathered:
    """Ask all sources of an expression concurrently; leave out those that fail.

    Raises:
        MeshError: every source failed; the error of the first one, whose name is in the message.
    """
    calls = {
        place.source: attempt(
            clock,
            Step.SOURCE,
            _retrieval(retriever, ask, place),
            who=f"source {place.source}",
        )
        for place in expression.places.values()
    }
    if expression.uses_knowledge:
        calls[PARAMETRIC_KNOWLEDGE] = attempt(
            clock,
            Step.SOURCE,
            lambda budget: generator.knowledge(ask, max_passages=KNOWLEDGE_DEPTH, timeout_s=budget),
            who=f"source {PARAMETRIC_KNOWLEDGE}",
        )
    outcomes = dict(zip(calls, await concurrently(list(calls.values())), strict=True))
    found = {name: one for name, one in outcomes.items() if not isinstance(one, HandledFailure)}
    failed = {name: one for name, one in outcomes.items() if isinstance(one, HandledFailure)}
    if not found:
        name, failure = next(iter(failed.items()))
        raise _with_source(name, failure.error)
    return _merged(expression, found, [one.degraded for one in failed.values()])


def _retrieval(retriever: Retriever, ask: Ask, place: Place) -> Callable[[float], Awaitable[Pool]]:
    at_place = replace(
        ask,
        collection=place.collection,
        web=place.web,
        retriever=place.retriever,
        depth=place.depth,
        id_prefix=place.prefix,
    )
    return lambda budget: retriever.retrieve(at_place, k=place.depth, sampling=None, timeout_s=budget)


def _merged(
    expression: ResolvedExpression, found: Mapping[str, Pool], degradations: Sequence[Degraded]
) -> Gathered:
    """Merge pools into one that has each passage once: two sources of one place find the same passages."""
    index: dict[str, int] = {}
    passages: list[Passage] = []
    scores: list[float] = []
    rows: dict[str, IntArray] = {}
    for name, pool in found.items():
        for passage, score in zip(pool.passages, pool.scores.tolist(), strict=True):
            if passage.id not in index:
                index[passage.id] = len(passages)
                passages.append(passage)
                scores.append(score)
        rows[name] = np.array([index[passage.id] for passage in pool.passages], dtype=np.int64)
    version = ",".join(f"{name}={pool.index_version}" for name, pool in found.items() if pool.index_version)
    if len(version.encode()) > _MAX_VERSION_BYTES:
        version = f"sha256:{hashlib.sha256(version.encode()).hexdigest()}"
    return Gathered(
        expression=expression,
        pool=Pool(
            passages=passages,
            scores=np.array(scores, dtype=np.float64),
            rankings=np.arange(len(passages), dtype=np.int64)[None, :],
            log_probabilities=None,
            retriever=expression.text,
            index_version=version,
        ),
        rows=rows,
        scores={name: pool.scores for name, pool in found.items()},
        degradations=degradations,
    )


def _with_source(source: str, error: MeshError) -> MeshError:
    """Return the error with the source's name, and ``expression`` for a field that the settings set."""
    return MeshError(
        error.code,
        error.reason,
        f"source {source}: {error.message}",
        field="expression" if error.field in _SET_BY_SETTINGS else error.field,
        retry_after_s=error.retry_after_s,
    )


async def concurrently(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of concurrent calls; cancel all if one raises or the caller is cancelled."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
