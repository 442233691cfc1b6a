"""Request coalescing: the members of an ensemble share each search, reranking and answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.generator.v1.generator_service_pb2 import Answer, GenerateRequest
from evenmesh.wire.errors import MeshError
from evenmesh_orchestrator.domain import Ask, FirstStage, Pool, Relevance, Sampling
from evenmesh_orchestrator.ports import Generator, Reranker, Retriever

T = TypeVar("T")

SearchKey = tuple[str, str, str]
"""Collection, web source and retriever of a search."""


class Coalescer:
    """Runs each piece of work of one ask once. Close it to cancel what is in flight."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the work of that key; it continues if this caller stops waiting."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
        return cast(T, await asyncio.shield(task))

    async def close(self) -> None:
        """Cancel everything."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class CoalescingRetriever:
    """A retriever that runs each search once, as deep as the member that wants most.

    Args:
        retriever: searches.
        coalescer: of the ask.
        depths: largest depth that any member wants, per search.
    """

    def __init__(self, retriever: Retriever, coalescer: Coalescer, depths: Mapping[SearchKey, int]) -> None:
        self._retriever = retriever
        self._coalescer = coalescer
        self._depths = depths

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """Search once; see the port. Members never sample here."""
        key = (ask.collection, ask.web, ask.retriever)
        depth = max(k, self._depths.get(key, k))
        pool = await self._coalescer.once(
            ("retrieve", key),
            lambda: self._retriever.retrieve(
                replace(ask, depth=depth), k=depth, sampling=None, timeout_s=timeout_s
            ),
        )
        return replace(
            pool,
            passages=pool.passages[:k],
            scores=pool.scores[:k],
            rankings=pool.rankings[:, :k],
            log_probabilities=None,
        )


class CoalescingReranker:
    """A reranker that scores each list once. Arguments as :class:`CoalescingRetriever`."""

    def __init__(self, reranker: Reranker, coalescer: Coalescer) -> None:
        self._reranker = reranker
        self._coalescer = coalescer

    async def rerank(
        self, ask: Ask, passages: Sequence[Passage], *, timeout_s: float, first: FirstStage | None = None
    ) -> Relevance:
        """Score once; see the port."""
        return await self._coalescer.once(
            ("rerank", tuple(one.id for one in passages), None if first is None else first.key),
            lambda: self._reranker.rerank(ask, passages, timeout_s=timeout_s, first=first),
        )


class CoalescingGenerator:
    """A generator that answers each context once. Arguments as :class:`CoalescingRetriever`."""

    def __init__(self, generator: Generator, coalescer: Coalescer) -> None:
        self._generator = generator
        self._coalescer = coalescer

    def stream(self, prompt: GenerateRequest, *, timeout_s: float) -> AsyncGenerator[str | Answer, None]:
        """Stream without coalescing; see the port."""
        return self._generator.stream(prompt, timeout_s=timeout_s)

    async def batch(
        self, prompts: Sequence[GenerateRequest], *, timeout_s: float
    ) -> Sequence[Answer | MeshError]:
        """Answer once; see the port."""
        key = tuple((one.augmentation, tuple(passage.id for passage in one.passages)) for one in prompts)
        return await self._coalescer.once(
            ("answer", key), lambda: self._generator.batch(prompts, timeout_s=timeout_s)
        )

    async def knowledge(self, ask: Ask, *, max_passages: int, timeout_s: float) -> Pool:
        """Write what the model knows once; see the port."""
        return await self._coalescer.once(
            ("knowledge", max_passages),
            lambda: self._generator.knowledge(ask, max_passages=max_passages, timeout_s=timeout_s),
        )
