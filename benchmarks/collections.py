"""Live collections by size: what an ingest costs, a merge, a restart, and how much memory serving takes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from services.retriever.analyzer import analyzer
from services.retriever.backends.bm25.kernel import choose
from services.retriever.backends.bm25.weighting import Lucene
from services.retriever.backends.segments.lexical import SegmentedIndex
from services.retriever.backends.segments.snapshot import SegmentSnapshot
from services.retriever.backends.segments.store import SegmentStore, TenantCollections
from services.retriever.backends.segments.writer import Recipe
from services.retriever.domain import DEFAULT_TENANT, Passage

_NAME = "bench"
_BATCH = 50_000
_WORDS = 60
_TOP = 100


@dataclass(frozen=True)
class Live:
    """One collection of generated passages. Times are seconds, sizes bytes, for one thread.

    Attributes:
        passages: passages in it.
        build_s: ingesting them in batches of 50,000, merges in the background included.
        disk: bytes on disk when all merges are done.
        segments: segments it then consists of.
        ingest_s: ingesting 1,000 passages more, until they are served; median of five.
        delete_s: removing 1,000 passages; median of five.
        merge_s: merging all of it into one segment.
        stall_ms: longest time that this kept the event loop of its process from running.
        merge_resident: most memory of the process that merged.
        open_s: a new process opens it and answers its first query, imports and compiling aside.
        opened_resident: memory that process holds then, beyond what it held before it opened the collection.
        query_ms: p50 of queries of ten words for the best 100, once each was asked before.
        queried_resident: memory after those queries, pages of mapped files included.
    """

    passages: int
    build_s: float
    disk: int
    segments: int
    ingest_s: float
    delete_s: float
    merge_s: float
    stall_ms: float
    merge_resident: int
    open_s: float
    opened_resident: int
    query_ms: float
    queried_resident: int


def measure(sizes: Sequence[int] = (20_000, 200_000, 1_000_000), *, queries: int = 200) -> list[Live]:
    """Measures a collection at each size in turn, in processes of their own."""
    results = []
    with TemporaryDirectory(prefix="ragmesh-bench-") as folder:
        for size in sizes:
            root = Path(folder) / str(size)
            grown = _in_process(_grow, root, size)
            os.sync()  # so that the next is not charged with writing back what this one wrote
            grown += _in_process(_update, root)
            merged = _in_process(_merge, root)
            opened = _in_process(_open, root, queries)
            results.append(Live(size, *grown, *merged, *opened))
    return results


def generated(size: int, *, seed: int = 0) -> Iterator[Passage]:
    """Passages of Zipf-distributed words with a provider, a language and a date."""
    rng = np.random.default_rng(seed)
    words = np.array([f"w{number}" for number in range(200_000)])
    shares = 1 / np.arange(1, len(words) + 1) ** 1.05
    bounds = np.cumsum(shares / shares.sum())
    for begin in range(0, size, 10_000):
        rows = min(10_000, size - begin)
        drawn = words[np.minimum(np.searchsorted(bounds, rng.random((rows, _WORDS))), len(words) - 1)]
        for row, text in enumerate(drawn.tolist(), start=begin):
            yield Passage(
                f"{seed}-{row:08}",
                "",
                " ".join(text),
                {
                    "provider": f"p{row % 50}",
                    "language": "en" if row % 3 else "de",
                    "date": f"20{row % 25:02}",
                },
            )


def _in_process(work: Callable[..., Coroutine[Any, Any, Any]], *arguments: object) -> tuple[Any, ...]:
    """Runs a function in a process of its own, so that its memory is its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, work, *arguments))
    process.start()
    theirs.close()
    try:
        result: tuple[Any, ...] = ours.recv()
    finally:
        process.join()
    return result


def _run(connection: Connection, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: object) -> None:
    connection.send(asyncio.run(work(*arguments)))


async def _opened(root: Path) -> tuple[SegmentStore, TenantCollections]:
    store = SegmentStore(root, Recipe(cache(analyzer), None), lambda _: None)
    await store.start()
    return store, store.of(DEFAULT_TENANT)


async def _grow(root: Path, size: int) -> tuple[Any, ...]:
    store, collections = await _opened(root)
    batch: list[Passage] = []
    build_s = 0.0
    for passage in generated(size):
        batch.append(passage)
        if len(batch) == _BATCH:
            build_s += await _timed(collections.ingest(_NAME, batch, create=True))
            batch = []
    if batch:
        build_s += await _timed(collections.ingest(_NAME, batch, create=True))
    build_s += await _timed(store.settled())
    info = collections.describe(_NAME)
    await store.stop()
    return build_s, info.size_bytes, info.num_segments


async def _update(root: Path) -> tuple[Any, ...]:
    store, collections = await _opened(root)
    ingests, deletions = [], []
    for seed in range(1, 6):
        more = list(generated(1_000, seed=seed))
        ingests.append(await _timed(collections.ingest(_NAME, more, create=False)))
        await store.settled()
        deletions.append(await _timed(collections.delete_passages(_NAME, [one.id for one in more])))
        await store.settled()
    await store.stop()
    return median(ingests), median(deletions)


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _merge(root: Path) -> tuple[Any, ...]:
    store, _ = await _opened(root)
    collection = store._collections[DEFAULT_TENANT, _NAME]
    names = [view.segment.name for view in collection.served.snapshot.views]
    collection.busy.update(names)
    beating = asyncio.create_task(_longest_stall())
    merge_s = await _timed(store._merge(collection, names))
    beating.cancel()
    stall_s = await beating
    await store.stop()
    return merge_s, 1e3 * stall_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _longest_stall() -> float:
    longest = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)
    except asyncio.CancelledError:
        return longest


async def _open(root: Path, queries: int) -> tuple[Any, ...]:
    kernel = choose()
    tokens = analyzer("").tokens  # the default, as the collection has it
    asked = [" ".join(one.text.split()[:10]) for one in generated(queries, seed=99)]
    # Compiled, or loaded, before the clock starts.
    small = SegmentStore(root.with_name("small"), Recipe(cache(analyzer), None), lambda _: None)
    await small.start()
    await small.of(DEFAULT_TENANT).ingest(_NAME, list(generated(10)), create=True)
    with _leased(small.of(DEFAULT_TENANT)) as snapshot:
        SegmentedIndex(snapshot, Lucene(), kernel).search(tokens(asked[0]), 5)
    await small.stop()
    before = _resident()
    began = time.perf_counter()
    store, collections = await _opened(root)
    with _leased(collections) as snapshot:
        index = SegmentedIndex(snapshot, Lucene(), kernel)
        found = index.search(tokens(asked[0]), _TOP)
        snapshot.passages(found.rows[:5].tolist())
        open_s = time.perf_counter() - began
        opened = _resident() - before
        times = []
        for query in [*asked, *asked]:
            began = time.perf_counter()
            index.search(tokens(query), _TOP)
            times.append(time.perf_counter() - began)
        queried = _resident() - before
    await store.stop()
    return open_s, opened, 1e3 * median(times[len(asked) :]), queried


@contextmanager
def _leased(collections: TenantCollections) -> Iterator[SegmentSnapshot]:
    with collections.lease(_NAME) as snapshot:
        if not isinstance(snapshot, SegmentSnapshot):
            raise TypeError(snapshot)
        yield snapshot


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
