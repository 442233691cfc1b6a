"""What the members of an ensemble share: each search, reranking and answer is done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from meshkit.errors import MeshError
from orchestrator.domain import Agent, Answer, Ask, Passage, Pool, Prompt, Relevance, Sampling
from orchestrator.ports import Generator, Reranker, Retriever

T = TypeVar("T")

Origin = tuple[str, str, str]
"""A place that is searched: collection, web source, and retriever."""


class Shared:
    """Work of one ask, each piece begun by whoever wants it first. Close it to stop what is under way."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work of that name, which goes on when this caller no longer waits."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
        return cast(T, await asyncio.shield(task))

    async def close(self) -> None:
        """Stops everything."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class SharedRetriever:
    """A retriever that searches each place once, as deep as any member wants it.

    Args:
        retriever: searches.
        shared: of the ask.
        depths: of each place, the most that any member wants.
    """

    def __init__(self, retriever: Retriever, shared: Shared, depths: Mapping[Origin, int]) -> None:
        self._retriever = retriever
        self._shared = shared
        self._depths = depths

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """See the port. Rankings are never sampled here."""
        place = origin(ask)
        depth = max(k, self._depths.get(place, k))
        asked = replace(ask, depth=depth)

        async def search() -> Pool:
            return await self._retriever.retrieve(asked, k=depth, sampling=None, timeout_s=timeout_s)

        pool = await self._shared.once(("retrieve", place), search)
        return Pool(
            passages=pool.passages[:k],
            scores=pool.scores[:k],
            rankings=pool.rankings[:, :k],
            log_probabilities=None,
            retriever=pool.retriever,
            index_version=pool.index_version,
        )


class SharedReranker:
    """A reranker that scores each list once. Arguments as :class:`SharedRetriever`."""

    def __init__(self, reranker: Reranker, shared: Shared) -> None:
        self._reranker = reranker
        self._shared = shared

    async def rerank(
        self, question: str, passages: Sequence[Passage], *, agent: Agent, reranker: str, timeout_s: float
    ) -> Relevance:
        """See the port."""

        async def score() -> Relevance:
            return await self._reranker.rerank(
                question, passages, agent=agent, reranker=reranker, timeout_s=timeout_s
            )

        return await self._shared.once(("rerank", tuple(one.id for one in passages)), score)


class SharedGenerator:
    """A generator that answers each context once. Arguments as :class:`SharedRetriever`."""

    def __init__(self, generator: Generator, shared: Shared) -> None:
        self._generator = generator
        self._shared = shared

    def stream(self, prompt: Prompt, *, timeout_s: float) -> AsyncGenerator[str | Answer, None]:
        """See the port; not shared."""
        return self._generator.stream(prompt, timeout_s=timeout_s)

    async def batch(self, prompts: Sequence[Prompt], *, timeout_s: float) -> Sequence[Answer | MeshError]:
        """See the port."""
        key = tuple((one.augmentation, tuple(passage.id for passage in one.passages)) for one in prompts)

        async def write() -> Sequence[Answer | MeshError]:
            return await self._generator.batch(prompts, timeout_s=timeout_s)

        return await self._shared.once(("answer", key), write)

    async def knowledge(self, ask: Ask, *, most: int, timeout_s: float) -> Pool:
        """See the port."""

        async def write() -> Pool:
            return await self._generator.knowledge(ask, most=most, timeout_s=timeout_s)

        return await self._shared.once(("knowledge", most), write)


def origin(ask: Ask) -> Origin:
    """The place an ask searches."""
    return ask.collection, ask.web, ask.retriever
