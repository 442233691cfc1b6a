"""What sampling adds to a query: the same query with and without it, side by side, by size.

Once as a client of the service sees it, over gRPC on this machine, and once from the engine to the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.collections import NAME, fill
from benchmarks.collections import generated as passages_of
from benchmarks.dense import DIMENSION
from benchmarks.dense import generated as vectors_of
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.server import MeshServer, Registration, Service
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.codec import queries
from evenmesh_retriever.domain import Draw, FloatArray, Query, VectorArray
from evenmesh_retriever.embedding import Embedder
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.servicer import RetrieverServicer
from evenmesh_retriever.settings import RetrieverSettings
from evenmesh_retriever.web import WebRetrieval

SIZES = (20_000, 200_000, 1_000_000)
RANKINGS, K, DEPTH, ALPHA = 100, 5, 100, 2.0
_SERVICE = "evenmesh.retriever.v1.RetrieverService"
_DRAW = Draw(ALPHA, RANKINGS, 1)


class _Known:
    """An encoder whose vectors are there already: those of numbered passages, and of numbered queries."""

    name = fingerprint = "known"
    dimension = DIMENSION
    device, precision = "cpu", "fp32"
    max_tokens = 256

    def __init__(self, vectors: VectorArray, asked: VectorArray) -> None:
        self._vectors = vectors
        self._asked = asked
        self._next = 0

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the characters."""
        return sum(map(len, texts))

    def encode_query(self, text: str) -> VectorArray:
        vector: VectorArray = self._asked[int(text.rsplit("#", 1)[1])]
        return vector

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        vectors = self._vectors[self._next : self._next + len(texts)]
        self._next += len(texts)
        progress(len(texts))
        return vectors


def measure(sizes: Sequence[int] = SIZES, *, asked: int = 50, rounds: int = 5) -> list[dict[str, str]]:
    """Measure BM25 and dense at each size; return a row for each.

    ``dense`` is without encoding the query, which takes as long at any size. What a side takes more is the
    median over the queries, and beside the time of the same query without it.
    """
    return [one for size in sizes for one in asyncio.run(_measured(size, asked, rounds))]


async def _measured(size: int, asked: int, rounds: int) -> list[dict[str, str]]:
    vectors, query_vectors = vectors_of(size, asked)
    encoder = _Known(vectors, query_vectors)
    catalogue = RetrieverCatalogue(
        RetrieverSettings(encoder="known", query_cache_bytes=0), cache(analyzer), encoder
    )
    with TemporaryDirectory(prefix="evenmesh-bench-") as folder:
        store = SegmentStore(
            Path(folder) / "collections", SegmentIndexing(cache(analyzer), encoder, size), catalogue.prepare
        )
        await store.start()
        await fill(store, size)
        del vectors
        pool = ComputePool(1, "bench")
        engine = RetrieverEngine(
            store, catalogue.retrievers, catalogue.default, pool, QueryAdmission(2**30, setting="max_work")
        )
        texts = [
            f"{' '.join(one.text.split()[:10])} #{number}"
            for number, one in enumerate(passages_of(asked, seed=99))
        ]
        found = []
        async with _served(engine, pool) as address:
            for name in ("bm25-lucene", "dense"):
                served = await asyncio.to_thread(_asked, address, name, texts, rounds)
                found.append(await _added(engine, store, catalogue, name, size, texts, rounds, served))
        pool.close()
        await store.stop()
    return found


async def _added(
    engine: RetrieverEngine,
    store: SegmentStore,
    catalogue: RetrieverCatalogue,
    name: str,
    size: int,
    texts: Sequence[str],
    rounds: int,
    served: tuple[float, float, float],
) -> dict[str, str]:
    plain = Query("", NAME, None, name, DEPTH, DEPTH, None, with_inclusion=False, stream_id="")
    drawn = replace(plain, k=K, draw=_DRAW)
    whole = replace(drawn, depth=None, whole=True)

    async def times(query: Query, asked: Sequence[str]) -> FloatArray:
        taken = []
        for text in asked:
            began = time.perf_counter()
            queries.response_of(await engine.retrieve(replace(query, text=text)))
            taken.append(1e3 * (time.perf_counter() - began))
        return np.array(taken)

    def searches() -> FloatArray:
        taken = []
        with store.of(DEFAULT_TENANT).lease(NAME) as snapshot:
            for text in texts:
                began = time.perf_counter()
                catalogue.retrievers[name].search(snapshot, text, DEPTH)
                taken.append(1e3 * (time.perf_counter() - began))
        return np.array(taken)

    few = texts[: max(5, len(texts) // 5)]
    for query in (plain, drawn):
        await times(query, texts)  # pages and passages that a running service has read before
    await times(whole, few[:2])
    found: dict[str, list[FloatArray]] = {key: [] for key in ("search", "short", "plain", "pool", "whole")}
    for _ in range(rounds):
        # Side by side for each query: what disturbs the machine disturbs both. Neither is the first to read
        # what the query reads.
        taken: dict[str, list[float]] = {"plain": [], "pool": []}
        for at, text in enumerate(texts):
            await times(plain, [text])
            sides = [("plain", plain), ("pool", drawn)]
            for key, query in sides if at % 2 else sides[::-1]:
                taken[key].append(float((await times(query, [text]))[0]))
        for key, values in taken.items():
            found[key].append(np.array(values))
        found["search"].append(searches())
        found["short"].append(await times(replace(plain, k=K), texts))
        found["whole"].append(await times(whole, few))
    best = {key: np.min(np.stack(rows), axis=0) for key, rows in found.items()}
    with _peak() as peak:
        await times(whole, few[:2])
    p50 = {key: float(np.median(times)) for key, times in best.items()}
    pool_added = float(np.median(best["pool"] - best["plain"]))
    a_query, all_added, one_added = served
    return {
        "passages": f"{size:,}",
        "retriever": name,
        "a query": f"{a_query:.2f}",
        "one ranking adds": f"{one_added:.3f}",
        "share (< 15 %)": f"{100 * one_added / a_query:.0f} %",
        f"{RANKINGS} rankings add": f"{all_added:.3f}",
        "their share (< 15 %)": f"{100 * all_added / a_query:.0f} %",
        "search alone": f"{p50['search']:.2f}",
        f"one ranking, {K} in the reply": f"{p50['short']:.2f}",
        f"{DEPTH} in the reply": f"{p50['plain']:.2f}",
        f"{RANKINGS} rankings add to that": f"{pool_added:.3f}",
        "their share": f"{100 * pool_added / p50['plain']:.0f} %",
        "drawn from the whole collection": f"{p50['whole']:.1f}",
        "memory of that": f"{peak[0] / 2**20:.0f} MiB",
    }


@asynccontextmanager
async def _served(engine: RetrieverEngine, pool: ComputePool) -> AsyncIterator[str]:
    """Yield the service around the engine, as its process runs it; its address."""
    settings = RetrieverSettings(encoder="known", host="127.0.0.1", port=0)
    telemetry = Telemetry.from_settings("retriever", settings)
    servicer = RetrieverServicer(pool)
    admission = QueryAdmission(8, setting="max_work")
    servicer.open(engine, WebRetrieval({}, engine, admission), Embedder(None, pool, admission))
    add = retriever_grpc.add_RetrieverServiceServicer_to_server
    registration = Registration(add, servicer, _SERVICE)
    async with MeshServer("retriever", settings, _Ready(registration), telemetry=telemetry) as server:
        yield server.address


class _Ready(Service):
    """Has nothing to load: the engine is there."""

    def __init__(self, registration: Registration) -> None:
        self.registrations = (registration,)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _asked(address: str, retriever: str, texts: Sequence[str], rounds: int) -> tuple[float, float, float]:
    """p50 of the best 100 for a client; medians of what 100 rankings and one take more. Milliseconds."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        return client.submit(_ask, address, retriever, list(texts), rounds).result()


def _ask(address: str, retriever: str, texts: Sequence[str], rounds: int) -> tuple[float, float, float]:
    from evenmesh.wire.channel import connect_sync

    channel = connect_sync(address, service=_SERVICE)
    stub = retriever_grpc.RetrieverServiceStub(channel)
    plain = retriever_pb.RetrieveRequest(collection=NAME, retriever=retriever, depth=DEPTH, k=DEPTH)
    drawn = retriever_pb.RetrieveRequest(collection=NAME, retriever=retriever, depth=DEPTH, k=K)
    drawn.sampling.alpha, drawn.sampling.num_rankings, drawn.sampling.seed = ALPHA, RANKINGS, 1
    one = retriever_pb.RetrieveRequest()
    one.CopyFrom(drawn)
    one.sampling.num_rankings = 1

    def ms(request: retriever_pb.RetrieveRequest, text: str) -> float:
        request.query = text
        began = time.perf_counter()
        stub.Retrieve(request, timeout=60)
        return 1e3 * (time.perf_counter() - began)

    sides = [("plain", plain), ("drawn", drawn), ("one", one)]
    taken: dict[str, list[list[float]]] = {key: [] for key, _ in sides}
    for turn in range(rounds + 1):
        row: dict[str, list[float]] = {key: [] for key, _ in sides}
        for at, text in enumerate(texts):
            ms(plain, text)
            first = (at + turn) % len(sides)  # none is always the first to read what the query reads
            for key, request in sides[first:] + sides[:first]:
                row[key].append(ms(request, text))
        if turn:  # the first reads what a running service has read before
            for key, values in row.items():
                taken[key].append(values)
    channel.close()
    best = {key: np.min(np.array(rows), axis=0) for key, rows in taken.items()}
    added = [float(np.median(best[key] - best["plain"])) for key in ("drawn", "one")]
    return float(np.median(best["plain"])), added[0], added[1]


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Yield the peak memory of Python and NumPy within the block, above what they held before. Bytes."""
    import tracemalloc

    peak = [0]
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
