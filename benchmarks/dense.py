"""Dense search against raw FAISS and NumPy: the same vectors, the same queries, one thread, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import faiss
import numpy as np

from evenmesh_retriever.backends.dense import build as dense
from evenmesh_retriever.backends.dense.flat import FlatIndex
from evenmesh_retriever.domain import FloatArray, VectorArray

SIZES = (20_000, 200_000, 1_000_000)
DIMENSION = 384
TOP = 100
BATCH = 32
_TOPIC_DIMENSION = 48
_CHUNK = 50_000
_BLAS_BY_DEFAULT = 128_000 // DIMENSION * DIMENSION


def measure(
    sizes: Sequence[int] = SIZES, *, queries: int = 96, rounds: int = 3
) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Time dense search on generated vectors: topics of about 200 in 48 dimensions, and noise in all 384.

    Returns:
        For each size, the times of a query and what the index is.
    """
    faiss.omp_set_num_threads(1)
    return [_measured(size, queries, rounds) for size in sizes]


def _measured(size: int, queries: int, rounds: int) -> tuple[dict[str, str], dict[str, str]]:
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
        # Its manifest's recall is that of the queries it was tuned with.
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
    speed = {
        "vectors": f"{size:,}",
        "kind": manifest.kind,
        "ours": f"{np.median(ours):.2f} / {np.quantile(np.median(np.stack(ours), axis=0), 0.99):.2f}",
        "ours, batched": f"{batched[0]:.2f}",
        "our flat": f"{median(flat_one):.2f}",
        "our flat, batched": f"{batched[1]:.2f}",
        "FAISS flat": f"{median(one for one, _ in raw_one):.2f}",
        "FAISS flat, batched": f"{median(many for _, many in raw_one):.2f}",
        "NumPy, batched": f"{batched[2]:.2f}",
    }
    return speed, {
        "vectors": f"{size:,}",
        "kind": manifest.kind,
        "built with": ", ".join(f"{name} {value}" for name, value in manifest.parameters.items()),
        "recall@100 in its manifest": f"{manifest.recall_at_100:.3f}",
        "of these queries": f"{recall:.3f}",
        "build": f"{build_s:.0f} s",
        "index": f"{index_bytes / 2**20:.0f} MiB",
        "vectors alone": f"{vectors.nbytes / 2**20:.0f} MiB",
    }


def generated(size: int, queries: int) -> tuple[VectorArray, VectorArray]:
    """Return vectors, and queries at a cosine of 0.7 to some of them."""
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
    """Return what ``IndexFlatIP.search`` does, without a copy of the vectors."""
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
