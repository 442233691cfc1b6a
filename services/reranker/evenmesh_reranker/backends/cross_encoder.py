"""The learned cross-encoder: pairs of all waiting requests and agents share batches."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import grpc

from evenmesh.wire.errors import MeshError
from evenmesh_kit.compute.batching import MicroBatcher
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.lengths import by_length, rows_at_once
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.backends import readings
from evenmesh_reranker.domain import Agent, Best, Passage, Scores
from evenmesh_reranker.metrics import RerankerMetrics
from evenmesh_reranker.models.pairs import passage_text
from evenmesh_reranker.ports import Assigned, ModelsOfAgents, Row

_CHUNK = 32
"""Most pairs of one request that queue together; their padded tokens are at most a batch's."""

_WAITING = 2
"""Chunks of one request in the queue at a time: other requests get between those of a large one."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Pairs of one request and what scores them."""

    rows: tuple[Row, ...]
    assigned: Assigned


@dataclass(frozen=True, slots=True)
class _Pair:
    """A pair, what scores it, and where its score is put."""

    row: Row
    assigned: Assigned
    scores: list[float]
    place: int


class CrossEncoderReranker:
    """Scores passages in batches shared between concurrent requests.

    Pairs of all waiting requests are sorted by length and computed in small batches, which need little
    padding, by as many threads as the model allows: one request uses all processors that are idle, and
    several share them. Agents share a batch if they share a model,
    whatever adapters they have. A passage is read as its title and text, joined by a space; the end of what
    is too long is cut.

    A query that says something and asks is read twice if the model says so
    (:mod:`evenmesh_reranker.backends.readings`) and the pairs of both readings may be computed; else once.

    A request is scored by the version that serves its agent when it arrives, even if another is promoted
    meanwhile.

    Args:
        models: finds the model of each agent.
        pool: threads that compute: those that score, and one more, so that one request is tokenised while
            others are scored.
        batch_size: most pairs in a batch; None: 16 on a CPU, any number elsewhere.
        batch_tokens: most padded tokens in a batch, and most tokens taken from the queue at once. Tokens.
        max_delay_s: longest wait for other requests when nothing runs. Seconds, [0, inf).
        max_tokens: most tokens of one request's pairs, [1, inf); None: any number.
        setting: name of the setting that this comes from, for errors.
        metrics: records batches; None records nothing.
    """

    def __init__(
        self,
        models: ModelsOfAgents,
        *,
        pool: ComputePool,
        batch_size: int | None,
        batch_tokens: int,
        max_delay_s: float,
        max_tokens: int | None = None,
        setting: str = "",
        metrics: RerankerMetrics | None = None,
    ) -> None:
        self._models = models
        self._pool = pool
        self._batch_size = batch_size
        self._batch_tokens = batch_tokens
        self._max_tokens = max_tokens
        self._setting = setting
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
        """Return the probability of each passage, by the agent's own version if it has one.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, the pairs have more tokens than a request may have.
        """
        assigned = await self._models.model_for(agent)
        read = await self._pool.run(readings.readings, assigned.model, query)
        try:
            rows = await self._pairs(read, passages, agent, assigned)
        except MeshError:
            if read == (query,):
                raise
            read = (query,)
            rows = await self._pairs(read, passages, agent, assigned)
        chunks, order = await self._pool.run(_chunks, rows, assigned, self._batch_tokens)
        turn = asyncio.Semaphore(_WAITING)

        async def in_turn(chunk: _Chunk) -> list[float]:
            async with turn:
                return await self._batcher.submit(chunk)

        scored = await asyncio.gather(*map(in_turn, chunks))
        values = [0.0] * len(rows)
        for at, value in zip(order, (value for chunk in scored for value in chunk), strict=True):
            values[at] = value
        scores = readings.scores(values, len(read))
        return Scores(tuple(scores), assigned.version, fusion=assigned.fusion(agent))

    async def _pairs(
        self, read: Sequence[str], passages: Sequence[Passage], agent: Agent, assigned: Assigned
    ) -> list[Row]:
        rows: list[Row] = []
        for begin in range(0, len(passages), _CHUNK):
            some = passages[begin : begin + _CHUNK]
            rows += await self._pool.run(_rows, read, some, agent, assigned)
            self._check(rows, len(passages))
        return rows

    def _check(self, rows: Sequence[Row], count: int) -> None:
        """Refuse pairs of too many tokens, before any is scored."""
        tokens = list(accumulate(len(row.ids) for row in rows))
        if self._max_tokens is not None and tokens[-1] > self._max_tokens:
            fitting = bisect_right(tokens, self._max_tokens)
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "REQUEST_TOO_LARGE",
                f"with the query the first {fitting} of {count} passages have the {self._max_tokens} tokens "
                f"that a request may have: send fewer or shorter ones, or raise {self._setting}",
                field="passages",
            )

    async def close(self) -> None:
        """Score the queued pairs and accept no more."""
        await self._batcher.close()

    async def _run(self, chunks: Sequence[_Chunk]) -> list[list[float] | Exception]:
        by_model: dict[int, list[int]] = defaultdict(list)
        for at, chunk in enumerate(chunks):
            by_model[id(chunk.assigned.model)].append(at)
        found: dict[int, list[float] | Exception] = {}
        for places in by_model.values():
            found |= zip(places, await self._of_one_model([chunks[at] for at in places]), strict=True)
        return [found[at] for at in range(len(chunks))]

    async def _of_one_model(self, chunks: Sequence[_Chunk]) -> list[list[float] | Exception]:
        """Return the scores of chunks of one model, or why it gives none of a chunk."""
        scored = [[0.0] * len(chunk.rows) for chunk in chunks]
        some = [
            _Pair(row, chunk.assigned, scores, place)
            for chunk, scores in zip(chunks, scored, strict=True)
            for place, row in enumerate(chunk.rows)
        ]
        model = chunks[0].assigned.model
        lengths = [len(one.row.ids) for one in some]
        size = self._batch_size or rows_at_once(model.device)
        batches = deque(model.batches(lengths) or by_length(lengths, self._batch_tokens, size=size))
        threads = min(model.parallel, len(batches))
        try:
            await asyncio.gather(*(self._pool.run(self._score, some, batches) for _ in range(threads)))
        except Exception as error:  # noqa: BLE001 - the caller receives it
            if len(chunks) == 1:
                return [error]
            # One of several is at fault, or they are too much together: each by itself.
            return [found for one in chunks for found in await self._of_one_model([one])]
        return [*scored]

    def _score(self, some: Sequence[_Pair], batches: deque[list[int]]) -> None:
        """Score batches, and leave some to other threads, until none is left."""
        while batches:
            try:
                batch = [some[at] for at in batches.popleft()]
            except IndexError:  # another thread has taken the last one
                return
            try:
                with self._metrics.batch(len(batch)):
                    found = batch[0].assigned.model.probabilities(
                        [one.row for one in batch], [one.assigned.adapter for one in batch]
                    )
            except BaseException:
                batches.clear()  # nobody gets a score of them
                raise
            for one, score in zip(batch, found, strict=True):
                one.scores[one.place] = score


def _rows(read: Sequence[str], passages: Sequence[Passage], agent: Agent, assigned: Assigned) -> list[Row]:
    texts = [passage_text(one.title, one.text) for one in passages]
    return readings.rows(assigned.model, read, texts, agent)


def _chunks(rows: Sequence[Row], assigned: Assigned, batch_tokens: int) -> tuple[list[_Chunk], list[int]]:
    """Return the request's pairs in chunks, longest pair first, and the place of each in the request."""
    # A caller that leaves waits in one batch at most: the model computes no more of its pairs after that.
    parts = by_length([len(row.ids) for row in rows], batch_tokens, size=_CHUNK)
    chunks = [_Chunk(tuple(rows[at] for at in part), assigned) for part in parts]
    return chunks, [at for part in parts for at in part]
