"""The learned cross-encoder: pairs of all waiting requests and agents share batches."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from meshkit.batching import MicroBatcher
from meshkit.compute import ComputePool
from meshkit.lengths import by_length
from meshkit.telemetry import Telemetry
from services.reranker.domain import Agent, Best, Passage, Scores
from services.reranker.metrics import RerankerMetrics
from services.reranker.models.pairs import passage_text
from services.reranker.ports import Adapter, Assigned, LoadedModel, ModelsOfAgents, Row

_CHUNK = 32
"""Pairs of one request that queue together."""

_WAITING = 2
"""Chunks of one request that queue at the same time: others get between those of a large request."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Pairs of one request and what scores them."""

    rows: tuple[Row, ...]
    assigned: Assigned


class CrossEncoderReranker:
    """Scores passages in batches shared between concurrent requests.

    Pairs of all waiting requests are sorted by length and computed in small batches, which wastes little on
    padding. Agents share a batch if they share a model, with or without changes of their own to it. A passage
    is read as its title and text, joined by a space; what is too long is cut at its end.

    A request is scored by what serves its agent when it comes, all of it, whatever is promoted meanwhile.

    Args:
        models: knows which model serves whom.
        pool: threads that compute; two, so that one request is tokenised while another is scored.
        batch_size: most pairs in a batch.
        batch_tokens: most padded tokens in a batch, and most tokens taken from the queue at once. Tokens.
        max_delay_s: longest wait for company when nothing runs. Seconds, [0, inf).
        metrics: told of batches; None records nothing.
    """

    def __init__(
        self,
        models: ModelsOfAgents,
        *,
        pool: ComputePool,
        batch_size: int,
        batch_tokens: int,
        max_delay_s: float,
        metrics: RerankerMetrics | None = None,
    ) -> None:
        self._models = models
        self._pool = pool
        self._batch_size = batch_size
        self._batch_tokens = batch_tokens
        self._metrics = metrics or RerankerMetrics(Telemetry.disabled())
        self._batcher: MicroBatcher[_Chunk, list[float]] = MicroBatcher(
            self._run,
            max_size=64,
            max_delay_s=max_delay_s,
            cost=lambda chunk: sum(len(row.ids) for row in chunk.rows),
            max_cost=batch_tokens,
            on_batch=self._metrics.queued,
        )
        self._metrics.watch_queue(lambda: sum(len(chunk.rows) for chunk in self._batcher.waiting))

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """The probability of each passage, by the agent's own version if it has one."""
        assigned = await self._models.model_for(agent)
        chunks, order = await self._pool.run(_chunks, query, passages, agent, assigned)
        turn = asyncio.Semaphore(_WAITING)

        async def in_turn(chunk: _Chunk) -> list[float]:
            async with turn:
                return await self._batcher.submit(chunk)

        scored = await asyncio.gather(*map(in_turn, chunks))
        values = [0.0] * len(passages)
        for at, value in zip(order, (value for chunk in scored for value in chunk), strict=True):
            values[at] = value
        return Scores(tuple(values), assigned.version)

    async def close(self) -> None:
        """Scores what is queued and takes no more."""
        await self._batcher.close()

    async def _run(self, chunks: Sequence[_Chunk]) -> list[list[float]]:
        return await self._pool.run(self._score, chunks)

    def _score(self, chunks: Sequence[_Chunk]) -> list[list[float]]:
        scored: list[list[float]] = [[] for _ in chunks]
        by_model: dict[int, list[int]] = defaultdict(list)
        for at, chunk in enumerate(chunks):
            by_model[id(chunk.assigned.model)].append(at)
        for places in by_model.values():
            rows = [row for at in places for row in chunks[at].rows]
            adapters = [chunks[at].assigned.adapter for at in places for _ in chunks[at].rows]
            model = chunks[places[0]].assigned.model
            values = iter(self._score_rows(model, rows, adapters))
            for at in places:
                scored[at] = [next(values) for _ in chunks[at].rows]
        return scored

    def _score_rows(
        self, model: LoadedModel, rows: Sequence[Row], adapters: Sequence[Adapter | None]
    ) -> list[float]:
        values = [0.0] * len(rows)
        for batch in by_length([len(row.ids) for row in rows], self._batch_tokens, size=self._batch_size):
            with self._metrics.batch(len(batch)):
                found = model.probabilities([rows[at] for at in batch], [adapters[at] for at in batch])
            for at, value in zip(batch, found, strict=True):
                values[at] = value
        return values


def _chunks(
    query: str, passages: Sequence[Passage], agent: Agent, assigned: Assigned
) -> tuple[list[_Chunk], list[int]]:
    """The request's pairs, longest first, in chunks; and the place of each in the request."""
    rows = assigned.model.rows(
        query, [passage_text(passage.title, passage.text) for passage in passages], agent
    )
    order = sorted(range(len(rows)), key=lambda at: -len(rows[at].ids))
    parts = (order[begin : begin + _CHUNK] for begin in range(0, len(order), _CHUNK))
    return [_Chunk(tuple(rows[at] for at in part), assigned) for part in parts], order
