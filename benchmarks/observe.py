"""Observing: how many events a second are made durable, and what the 100,000th costs over the 1,000th."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sqlalchemy import URL

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import Measurement, Observation
from evenmesh_evaluator.engine import Evaluator
from evenmesh_evaluator.observations import codec as observations
from evenmesh_evaluator.observations.scores import measure as measured
from evenmesh_kit.security.caller import DEFAULT_TENANT

_START_US = 1_700_000_000 * 10**6
_FILL = 512  # events a commit while a store is only filled


def messages(
    *, num_rankings: int = 20, k: int = 5, candidates: int = 100, queries: int = 1_000, passages: int = 20_000
) -> Iterator[pb.Observation]:
    """Yield observations without end: each of one of the queries, whose candidates stay the same.

    Args:
        num_rankings: sampled rankings of an observation.
        k: passages a ranking shows.
        candidates: candidates of a query, drawn from the passages.
        queries: queries that come in turn.
        passages: passages of the collection; a hundred of each provider.
    """
    rng = np.random.default_rng(0)
    pools = [rng.choice(passages, candidates, replace=False).tolist() for _ in range(queries)]
    number = 0
    while True:
        pool = pools[number % queries]
        shown = np.argsort(rng.gumbel(size=(num_rankings, candidates)), axis=1)[:, :k]
        message = pb.Observation(
            id=f"event-{number}",
            run_id="run",
            query_id=f"query-{number % queries}",
            question="Which river flows through the town?",
            collection="bench",
            retriever="bm25",
            reranker="none",
            generator="stand-in",
            alpha=1.0,
            candidates=[
                pb.Candidate(passage_id=f"passage-{one}", provider=f"provider-{one // 100}") for one in pool
            ],
            shown=common_pb2.Rankings(depth=k, indices=shown.ravel().tolist()),
            answers=[pb.SampledAnswer(text="the river Rhine", samples=list(range(num_rankings)))],
            labels=pb.Labels(
                has_useful=True,
                useful_passage_ids=[f"passage-{one}" for one in pool[:k]],
                references=["Rhine"],
            ),
            stage_times=[common_pb2.StageTime(stage=common_pb2.STAGE_RETRIEVE, duration_ms=1.0 + number % 7)],
        )
        message.observed_at.FromMicroseconds(_START_US + number * 100_000)  # ten a second
        yield message
        number += 1


class _Store:
    """A store whose clock follows its events."""

    def __init__(self, folder: Path) -> None:
        self._now_us = _START_US
        url = URL.create("sqlite+aiosqlite", database=str(folder / "observations.db"))
        self.store = SqlObservationStore(url, clock=lambda: self._now_us)

    async def append(self, batch: list[tuple[Observation, Measurement]]) -> float:
        """Store a batch and report how long it took. Seconds."""
        self._now_us = batch[-1][0].observed_at_us
        begin = time.perf_counter()
        await self.store.append(batch)
        return time.perf_counter() - begin


def _read(source: Iterator[pb.Observation], count: int) -> list[tuple[Observation, Measurement]]:
    read = [observations.observation(next(source), now_us=0) for _ in range(count)]
    return [(one, measured(one)) for one in read]


async def _throughput(folder: Path, count: int, window: int) -> float:
    store = _Store(folder).store
    await store.open()
    evaluator = Evaluator(store, commit_size=512)
    source = messages()
    payloads = [next(source).SerializeToString() for _ in range(count)]
    left = iter(payloads)

    async def observe() -> None:
        for payload in left:
            observation = observations.observation(pb.Observation.FromString(payload), now_us=0)
            await evaluator.observe(observation, measured(observation))

    begin = time.perf_counter()
    await asyncio.gather(*(observe() for _ in range(window)))
    taken = time.perf_counter() - begin
    await evaluator.close()
    await store.close()
    return count / taken


async def measure(
    *,
    events: int = 100_000,
    early: int = 1_000,
    commit: int = 16,
    timed: int = 1_024,
    sustained: int = 4_000,
    window: int = 256,
) -> str:
    """Measure observing in SQLite on this machine's disk, and return the section of the page.

    Args:
        events: events in the store when the late ones are timed.
        early: events in the store when the early ones are timed.
        commit: events a commit while they are timed.
        timed: events that are timed, in either store; their commits alternate, so that whatever else the
            machine does meets both.
        sustained: events that throughput is measured with.
        window: events on their way at once while throughput is measured.
    """
    with tempfile.TemporaryDirectory() as home:
        folders = [Path(home) / name for name in ("sustained", "early", "late")]
        events_per_s = await _throughput(folders[0], sustained, window)
        stores = [_Store(folder) for folder in folders[1:]]
        sources = [messages(), messages()]
        for store, source, count in zip(stores, sources, (early, events), strict=True):
            await store.store.open()
            for start in range(0, count, _FILL):
                await store.append(_read(source, min(_FILL, count - start)))
        taken = [0.0, 0.0]
        for _ in range(timed // commit):
            for place, (store, source) in enumerate(zip(stores, sources, strict=True)):
                taken[place] += await store.append(_read(source, commit))
        alone = [await stores[1].append(_read(sources[1], 1)) for _ in range(64)]
        report = await Evaluator(stores[1].store, commit_size=1).report(DEFAULT_TENANT, "run")
        if report.num_observations != events + timed // commit * commit + len(alone):
            raise RuntimeError(f"the report knows {report.num_observations} events")
        for store in stores:
            await store.store.close()
    early_ms, late_ms = (1e3 * one / (timed // commit * commit) for one in taken)
    return f"""Events of 20 rankings of 5 from 100 candidates, with labels; SQLite on this
machine's disk, every event durable before it is acknowledged.

| | | target |
|---|---|---|
| events a second, many on their way | {events_per_s:.0f} | |
| one event alone, until it is durable | {1e3 * float(np.median(alone)):.1f} ms | |
| store's cost of an event after {early:,} events, {commit} a commit | {early_ms:.2f} ms | |
| the same after {events:,} events | {late_ms:.2f} ms | |
| ratio | {late_ms / early_ms:.2f} | ≤ 1.2 |"""
