"""Build the dense index of a segment: choose its kind by size, and its search effort by measured recall."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.dense.approximate import ApproximateIndex
from evenmesh_retriever.backends.dense.flat import FlatIndex
from evenmesh_retriever.backends.dense.gpu import GpuFlatIndex, GpuOwner
from evenmesh_retriever.backends.dense.manifest import INDEX_NAME, CorruptIndex, DenseManifest, Kind
from evenmesh_retriever.domain import FloatArray, IntArray, VectorArray

FLAT_UP_TO: Final = 50_000
"""Most vectors that are all compared; a query takes some milliseconds then."""
HNSW_UP_TO: Final = 150_000
"""Most vectors that become a graph; beyond, building inverted lists is many times as fast."""
TARGET_RECALL: Final = 0.95
"""Recall@100 that is looked for."""

_DEPTH: Final = 100
_QUERIES: Final = 200
_CHUNK: Final = 50_000
_LINKS: Final = 32
_EF_CONSTRUCTION: Final = 80
_EF_SEARCH: Final = (128, 256, 512, 1024, 2048)
# Lists looked at, and candidates fetched for each that is wanted; the cheapest first.
_PROBES: Final = (
    *((16, 4), (32, 4), (64, 4), (64, 8), (128, 8), (256, 8), (256, 16)),
    *((320, 8), (384, 8), (384, 16), (512, 16), (512, 32), (1024, 32), (2048, 64)),
)
# Components that share a code of 4 bits, and bits of a code. FAISS compares 32 such codes at a time: of the
# same size on disk as codes of 8 bits for 8 components, four to seven times as fast, and as good a recall.
_CODED_COMPONENTS: Final = 4
_CODE_BITS: Final = 4
_TRAINED_PER_LIST: Final = 40

_log = logging.getLogger("evenmesh.retriever.dense")


class DenseIndex(Protocol):
    """The vectors of a segment, searched by inner product. Called from several threads at once."""

    def search(
        self, queries: VectorArray, n: int, *, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """For each query rows ``[q, m]`` and exact scores ``[q, m]``, best first, equal ones by row."""


def build(
    vectors: VectorArray,
    folder: Path,
    *,
    target_recall: float = TARGET_RECALL,
    progress: Callable[[int], None] = lambda _: None,
    kinds: Sequence[Kind] | None = None,
    threads: int = 1,
) -> DenseManifest:
    """Build the index of some vectors into a folder, and measure it.

    Recall is measured against comparing all, on queries at a cosine of 0.7 to a vector of the collection (the
    vector plus noise of its length in a random direction): as far away as questions are from what answers
    them, and off the paths that vectors themselves lie on. How far to look is raised until the target is
    met; a kind that does not meet it is dropped for the next, of which ``flat`` meets any.

    Args:
        vectors: of length 1, ``[n, d]``; may be memory-mapped.
        folder: is there; the manifest and, unless the index is flat, the index are written into it.
        target_recall: recall@100, [0, 1].
        progress: called with the number of vectors done; what it raises ends the work.
        kinds: what to try, in order; None: by size. ``flat`` is always the last resort.
        threads: threads of FAISS, [1, inf).
    """
    faiss.omp_set_num_threads(threads)
    size, dimension = vectors.shape
    tried: dict[str, float] = {}
    for kind in kinds if kinds is not None else _kinds(size):
        if kind == "flat":
            break
        index, built = _hnsw(vectors, progress) if kind == "hnsw" else _ivf_pq(vectors, progress)
        manifest = _tuned(index, vectors, kind, built, target_recall, threads)
        if manifest.recall_at_100 >= target_recall:
            manifest = manifest.model_copy(update={"tried": tried})
            faiss.write_index(index, str(folder / INDEX_NAME))
            break
        tried[kind] = manifest.recall_at_100
        _log.warning("a dense index misses its recall", extra={"kind": kind, **manifest.parameters})
    else:
        kind = "flat"
    if kind == "flat":
        progress(size)
        manifest = DenseManifest(
            kind="flat", num_vectors=size, dimension=dimension, recall_at_100=1.0, tried=tried
        )
    manifest.write(folder)
    return manifest


def open(folder: Path, vectors: VectorArray, *, threads: int = 1) -> DenseIndex:  # noqa: A001 - as a file
    """Return the index of a folder, mapped into memory, over the vectors it was built of.

    Args:
        folder: what :func:`build` wrote.
        vectors: ``[n, d]``; not copied.
        threads: threads of a search, [1, inf).

    Raises:
        CorruptIndex: the manifest or the index is missing, unreadable or of other vectors.
    """
    manifest = DenseManifest.read(folder)
    if (manifest.num_vectors, manifest.dimension) != vectors.shape:
        raise CorruptIndex(
            f"{folder} is of {manifest.num_vectors} vectors of {manifest.dimension} dimensions, "
            f"not of {vectors.shape[0]} of {vectors.shape[1]}"
        )
    if manifest.kind == "flat":
        return FlatIndex(vectors, threads=threads)
    return ApproximateIndex.open(folder, vectors, manifest, threads=threads)


def on_gpu(owner: GpuOwner, vectors: VectorArray) -> DenseIndex | None:
    """Return all of the vectors, to be compared on a GPU; None if they do not fit there."""
    if not owner.fits(vectors):
        return None
    try:
        return GpuFlatIndex(owner, vectors, FlatIndex(vectors))
    except RuntimeError:
        _log.exception("vectors could not be copied to the GPU; the processor searches them")
        return None


def _kinds(size: int) -> tuple[Kind, ...]:
    if size <= FLAT_UP_TO:
        return ("flat",)
    return ("hnsw", "ivf-pq") if size <= HNSW_UP_TO else ("ivf-pq", "hnsw")


def _hnsw(vectors: VectorArray, progress: Callable[[int], None]) -> tuple[Any, dict[str, int]]:
    # Components in 8 bits: a quarter of the memory, and candidates are scored anew anyway.
    index = faiss.IndexHNSWSQ(
        vectors.shape[1],
        faiss.ScalarQuantizer.QT_8bit,  # type: ignore[arg-type]
        _LINKS,
        faiss.METRIC_INNER_PRODUCT,
    )
    index.hnsw.efConstruction = _EF_CONSTRUCTION
    index.train(_sample(vectors, _CHUNK))
    _add(index, vectors, progress)
    return index, {"links": _LINKS, "ef_construction": _EF_CONSTRUCTION}


def _ivf_pq(vectors: VectorArray, progress: Callable[[int], None]) -> tuple[Any, dict[str, int]]:
    size, dimension = vectors.shape
    lists = min(2 ** round(math.log2(2 * math.sqrt(size))), max(1, size // _TRAINED_PER_LIST))
    codes = next(m for m in range(max(1, dimension // _CODED_COMPONENTS), 0, -1) if dimension % m == 0)
    index = faiss.IndexIVFPQFastScan(
        faiss.IndexFlatIP(dimension), dimension, lists, codes, _CODE_BITS, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.min_points_per_centroid = 1
    index.cp.niter = 10
    index.pq.cp.min_points_per_centroid = 1
    index.train(_sample(vectors, max(_TRAINED_PER_LIST * lists, 10_000)))
    _add(index, vectors, progress)
    return index, {"lists": lists, "codes": codes}


def _add(index: Any, vectors: VectorArray, progress: Callable[[int], None]) -> None:
    for begin in range(0, len(vectors), _CHUNK):
        index.add(np.ascontiguousarray(vectors[begin : begin + _CHUNK]))
        progress(min(begin + _CHUNK, len(vectors)))


def _sample(vectors: VectorArray, most: int) -> VectorArray:
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(len(vectors), min(most, len(vectors)), replace=False))
    return np.ascontiguousarray(vectors[rows])


def _tuned(
    index: Any,
    vectors: VectorArray,
    kind: Kind,
    built: dict[str, int],
    target_recall: float,
    threads: int,
) -> DenseManifest:
    """Return the least effort that finds enough, or the most there is."""
    queries = _queries(vectors)
    exact, _ = FlatIndex(vectors, threads=threads).search(queries, _DEPTH)
    efforts = (
        [{"ef_search": effort, "fetched": 2} for effort in _EF_SEARCH]
        if kind == "hnsw"
        else [{"nprobe": min(n, built["lists"]), "fetched": fetched} for n, fetched in _PROBES]
    )
    for effort in efforts:
        manifest = DenseManifest(
            kind=kind,
            num_vectors=len(vectors),
            dimension=vectors.shape[1],
            recall_at_100=0.0,
            parameters=built | effort,
        )
        found, _ = ApproximateIndex(index, vectors, manifest, threads=threads).search(queries, _DEPTH)
        recall = float(np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)]))
        manifest = manifest.model_copy(update={"recall_at_100": recall})
        if recall >= target_recall:
            break
    return manifest


def _queries(vectors: VectorArray) -> VectorArray:
    rng = np.random.default_rng(1)
    rows = np.sort(rng.choice(len(vectors), min(_QUERIES, len(vectors)), replace=False))
    noise = rng.standard_normal((len(rows), vectors.shape[1])).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = vectors[rows] + noise
    return np.asarray(mixed / np.maximum(np.linalg.norm(mixed, axis=1, keepdims=True), 1e-12), np.float32)
