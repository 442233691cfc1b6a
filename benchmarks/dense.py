"""Dense search against raw FAISS and NumPy: the same vectors, the same queries, one thread, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import faiss
import numpy as np

from services.retriever.backends.dense import build as dense
from services.retriever.backends.dense.flat import FlatIndex
from services.retriever.domain import FloatArray, VectorArray

SIZES = (20_000, 200_000, 1_000_000)
DIMENSION = 384
TOP = 100
BATCH = 32
_TOPIC_DIMENSION = 48
_CHUNK = 50_000
_BLAS_BY_DEFAULT = 128_000 // DIMENSION * DIMENSION


@dataclass(frozen=True)
class Scale:
    """One collection of generated vectors; times are for one query, in milliseconds, for the best 100.

    Attributes:
        vectors: vectors in it.
        kind: index that was built.
        parameters: what it was built with, and how far it looks.
        measured_recall: recall@100 as measured when it was built, in its manifest.
        recall: recall@100 of the queries timed here, which it was not tuned with.
        build_s: building and measuring. Seconds.
        index_bytes: the index on disk; the vectors come on top.
        vector_bytes: the vectors.
        ours_p50_ms: our index, one query at a time.
        ours_p99_ms: the same.
        ours_batched_ms: our index, 32 queries at a time.
        flat_p50_ms: our flat index, one query at a time.
        flat_batched_ms: our flat index, 32 queries at a time.
        faiss_p50_ms: ``faiss.IndexFlatIP`` with its defaults, one query at a time.
        faiss_batched_ms: the same, 32 queries at a time.
        numpy_batched_ms: a matrix product and ``argpartition``, 32 queries at a time.
    """

    vectors: int
    kind: str
    parameters: dict[str, int]
    measured_recall: float
    recall: float
    build_s: float
    index_bytes: int
    vector_bytes: int
    ours_p50_ms: float
    ours_p99_ms: float
    ours_batched_ms: float
    flat_p50_ms: float
    flat_batched_ms: float
    faiss_p50_ms: float
    faiss_batched_ms: float
    numpy_batched_ms: float


def measure(sizes: Sequence[int] = SIZES, *, queries: int = 96, rounds: int = 3) -> list[Scale]:
    """Times dense search on generated vectors: topics of about 200 in 48 dimensions, and noise in all 384."""
    faiss.omp_set_num_threads(1)
    return [_measured(size, queries, rounds) for size in sizes]


def _measured(size: int, queries: int, rounds: int) -> Scale:
    vectors, asked = generated(size, queries)
    flat = FlatIndex(vectors)
    with TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        manifest = dense.build(vectors, folder)
        build_s = time.perf_counter() - began
        index_bytes = sum(path.stat().st_size for path in folder.iterdir())
        index = dense.open(folder, vectors)
        exact, _ = flat.search(asked, TOP)
        found, _ = index.search(asked, TOP)
        recall = np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)])
        raw = _view(vectors)
        few = asked[: 24 if size > 500_000 else None]
        ours, flat_one, raw_one, together = [], [], [], []
        for _ in range(rounds):
            ours.append(_times_ms(lambda query: index.search(query, TOP), asked, 1))
            flat_one.append(median(_times_ms(lambda query: flat.search(query, TOP), few, 1)))
            together.append(
                [
                    median(_times_ms(search, asked, BATCH)) / BATCH
                    for search in (
                        lambda batch: index.search(batch, TOP),
                        lambda batch: flat.search(batch, TOP),
                        lambda batch: _numpy(vectors, batch),
                    )
                ]
            )
            faiss.cvar.distance_compute_blas_threshold = _BLAS_BY_DEFAULT
            raw_one.append(
                (
                    median(_times_ms(lambda query: raw(query, TOP), few, 1)),
                    median(_times_ms(lambda batch: raw(batch, TOP), asked[:BATCH], BATCH)) / BATCH,
                )
            )
            FlatIndex(vectors)  # sets it back
    batched = np.median(np.array(together), axis=0)
    return Scale(
        vectors=size,
        kind=manifest.kind,
        parameters=manifest.parameters,
        measured_recall=manifest.recall_at_100,
        recall=float(recall),
        build_s=build_s,
        index_bytes=index_bytes,
        vector_bytes=vectors.nbytes,
        ours_p50_ms=float(np.median(ours)),
        ours_p99_ms=float(np.quantile(np.median(np.stack(ours), axis=0), 0.99)),
        ours_batched_ms=float(batched[0]),
        flat_p50_ms=float(median(flat_one)),
        flat_batched_ms=float(batched[1]),
        faiss_p50_ms=float(median(one for one, _ in raw_one)),
        faiss_batched_ms=float(median(many for _, many in raw_one)),
        numpy_batched_ms=float(batched[2]),
    )


def generated(size: int, queries: int) -> tuple[VectorArray, VectorArray]:
    """Vectors, and queries at a cosine of 0.7 to some of them."""
    rng = np.random.default_rng(size)
    basis = rng.standard_normal((_TOPIC_DIMENSION, DIMENSION), dtype=np.float32) / _TOPIC_DIMENSION**0.5
    centres = rng.standard_normal((size // 200, _TOPIC_DIMENSION), dtype=np.float32)
    vectors = np.empty((size, DIMENSION), dtype=np.float32)
    for begin in range(0, size, _CHUNK):
        part = vectors[begin : begin + _CHUNK]
        topics = centres[rng.integers(0, len(centres), len(part))]
        topics = topics + 0.9 * rng.standard_normal(topics.shape, dtype=np.float32)
        part[:] = topics @ basis + 0.25 * rng.standard_normal(part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    noise = rng.standard_normal((queries, DIMENSION), dtype=np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    asked = vectors[rng.integers(0, size, queries)] + noise
    return vectors, asked / np.linalg.norm(asked, axis=1, keepdims=True)


def _view(vectors: VectorArray) -> Callable[[VectorArray, int], object]:
    """What ``IndexFlatIP.search`` does, without a copy of the vectors."""
    return lambda queries, n: faiss.knn(queries, vectors, n, metric=faiss.METRIC_INNER_PRODUCT)


def _numpy(vectors: VectorArray, queries: VectorArray) -> object:
    scores = queries @ vectors.T
    rows = np.argpartition(scores, -TOP, axis=1)[:, -TOP:]
    order = np.argsort(-np.take_along_axis(scores, rows, axis=1), axis=1)
    return np.take_along_axis(rows, order, axis=1)


def _times_ms(search: Callable[[VectorArray], object], asked: VectorArray, batch: int) -> FloatArray:
    times = []
    search(asked[:batch])
    for begin in range(0, len(asked) - batch + 1, batch):
        began = time.perf_counter()
        search(asked[begin : begin + batch])
        times.append(1e3 * (time.perf_counter() - began))
    return np.array(times)
