"""Live collections by size: what an ingest costs, a merge, a restart, and how much memory serving takes."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.weighting import Lucene
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.lexical import SegmentedIndex
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.ports import TenantCollections

NAME = "bench"
_BATCH = 50_000
_WORDS = 60
_TOP = 100


def measure(
    sizes: Sequence[int] = (20_000, 200_000, 1_000_000), *, queries: int = 200
) -> list[dict[str, str]]:
    """Measure a collection at each size in turn, in processes of their own; return a row for each."""
    results = []
    with TemporaryDirectory(prefix="evenmesh-bench-") as folder:
        for size in sizes:
            root = Path(folder) / str(size)
            grown = {"passages": f"{size:,}", **_in_process(_grow, root, size)}
            os.sync()  # so that the next is not charged with writing back what this one wrote
            grown |= _in_process(_update, root) | _in_process(_merge, root)
            results.append(grown | _in_process(_open, root, queries))
    return results


def generated(size: int, *, seed: int = 0) -> Iterator[Passage]:
    """Yield passages of Zipf-distributed words with a provider, a language and a date."""
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


async def fill(store: SegmentStore, size: int) -> float:
    """Ingest generated passages in batches; return the seconds until they are merged, too."""
    passages, collections, build_s = generated(size), store.of(DEFAULT_TENANT), 0.0
    while batch := list(islice(passages, _BATCH)):
        build_s += await _timed(collections.ingest(NAME, batch, create=True))
    return build_s + await _timed(store.settled())


_Work = Callable[..., Coroutine[Any, Any, dict[str, str]]]


def _in_process(work: _Work, *arguments: object) -> dict[str, str]:
    """Run a function in a process of its own, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_run, work, *arguments).result()


def _run(work: _Work, *arguments: object) -> dict[str, str]:
    return asyncio.run(work(*arguments))


async def _opened(root: Path) -> tuple[SegmentStore, TenantCollections]:
    store = SegmentStore(root, SegmentIndexing(cache(analyzer), None), lambda _: None)
    await store.start()
    return store, store.of(DEFAULT_TENANT)


async def _grow(root: Path, size: int) -> dict[str, str]:
    store, collections = await _opened(root)
    build_s = await fill(store, size)
    info = collections.describe(NAME)
    await store.stop()
    return {
        "build": f"{build_s:.0f} s",
        "disk": f"{info.size_bytes / 2**20:.0f} MiB",
        "segments": f"{info.num_segments}",
    }


async def _update(root: Path) -> dict[str, str]:
    store, collections = await _opened(root)
    ingests, deletions = [], []
    for seed in range(1, 6):
        more = list(generated(1_000, seed=seed))
        ingests.append(await _timed(collections.ingest(NAME, more, create=False)))
        await store.settled()
        deletions.append(await _timed(collections.delete_passages(NAME, [one.id for one in more])))
        await store.settled()
    await store.stop()
    return {
        "1,000 more": f"{1e3 * median(ingests):.0f} ms",
        "1,000 fewer": f"{1e3 * median(deletions):.0f} ms",
    }


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _merge(root: Path) -> dict[str, str]:
    store, _ = await _opened(root)
    collection = store._collections[DEFAULT_TENANT, NAME]
    names = [view.segment.name for view in collection.served.snapshot.views]
    collection.busy.update(names)
    beating = asyncio.create_task(_longest_stall())
    merge_s = await _timed(store._merge(collection, names))
    beating.cancel()
    stall_s = await beating
    await store.stop()
    return {
        "merge all": f"{merge_s:.1f} s",
        "longest stall": f"{1e3 * stall_s:.0f} ms",
        "memory of the merge": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB",
    }


async def _longest_stall() -> float:
    longest = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)
    except asyncio.CancelledError:
        return longest


async def _open(root: Path, queries: int) -> dict[str, str]:
    tokens = analyzer("").tokens  # the default, as the collection has it
    asked = [" ".join(one.text.split()[:10]) for one in generated(queries, seed=99)]
    # Compiled, or loaded, before the clock starts.
    small = SegmentStore(root.with_name("small"), SegmentIndexing(cache(analyzer), None), lambda _: None)
    await small.start()
    await small.of(DEFAULT_TENANT).ingest(NAME, list(generated(10)), create=True)
    with _leased(small.of(DEFAULT_TENANT)) as snapshot:
        SegmentedIndex(snapshot, Lucene()).search(tokens(asked[0]), 5)
    await small.stop()
    before = _resident()
    began = time.perf_counter()
    store, collections = await _opened(root)
    with _leased(collections) as snapshot:
        index = SegmentedIndex(snapshot, Lucene())
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
    return {
        "open and first answer": f"{open_s:.2f} s",
        "memory then": f"{opened / 2**20:.0f} MiB",
        "query, p50": f"{1e3 * median(times[len(asked) :]):.2f} ms",
        "memory after 200": f"{queried / 2**20:.0f} MiB",
    }


@contextmanager
def _leased(collections: TenantCollections) -> Iterator[SegmentSnapshot]:
    with collections.lease(NAME) as snapshot:
        if not isinstance(snapshot, SegmentSnapshot):
            raise TypeError(snapshot)
        yield snapshot


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
