"""Search a part of the vectors only: FAISS graphs (HNSW) and inverted lists of coded vectors (IVF-PQ).

Both find candidates; scores are worked out anew from the vectors, so a score is the same whatever found it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.dense.flat import FlatIndex, selector
from evenmesh_retriever.backends.dense.manifest import INDEX_NAME, CorruptIndex, DenseManifest
from evenmesh_retriever.backends.dense.rescoring import best_of, stacked
from evenmesh_retriever.domain import FloatArray, IntArray, VectorArray

# What recall was measured at; who asks for more is looked for further.
_MEASURED: Final = 100
# Fewer rows than this, or a smaller share, are compared one by one: quicker, and exact.
_FEW: Final = 10_000
_SHARE: Final = 0.05


class ApproximateIndex:
    """Candidates from a FAISS index, exact scores from the vectors.

    Args:
        index: an ``IndexHNSW`` or ``IndexIVFPQFastScan`` over the vectors, in their order.
        vectors: ``[n, d]``; not copied.
        manifest: how far to look.
        threads: threads of a search, [1, inf).
    """

    def __init__(
        self, index: Any, vectors: VectorArray, manifest: DenseManifest, *, threads: int = 1
    ) -> None:
        self._index = index
        self._vectors = vectors
        self._manifest = manifest
        self._threads = threads

    @classmethod
    def open(
        cls, folder: Path, vectors: VectorArray, manifest: DenseManifest, *, threads: int = 1
    ) -> ApproximateIndex:
        """Map the index of a folder into memory.

        Raises:
            CorruptIndex: it is missing, is no index, or is not that of the vectors.
        """
        path = folder / INDEX_NAME
        # Not IO_FLAG_MMAP: lists read that way start 32 threads for every query, to read ahead.
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError:
            raise CorruptIndex(f"{path} is missing or no FAISS index") from None
        if (index.ntotal, index.d) != vectors.shape:
            raise CorruptIndex(
                f"{path} is of {index.ntotal} vectors of {index.d} dimensions, "
                f"not of {vectors.shape[0]} of {vectors.shape[1]}"
            )
        return cls(index, vectors, manifest, threads=threads)

    def search(
        self, queries: VectorArray, n: int, *, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """For each query ``n`` of large inner product, best first, equal ones by ascending row.

        Args:
            queries: ``[q, d]``.
            n: how many, from 1.
            allowed: whether each vector may be found, ``[len(vectors)]``; None: all may.

        Returns:
            Rows ``[q, m]`` and exact scores ``[q, m]``, where m is n or as many as there are.
        """
        there = len(self._vectors) if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(n, there)
        if there <= _FEW or (allowed is not None and there < _SHARE * len(allowed)):
            return self._exactly(queries, wanted, allowed)
        # A setting of the calling thread.
        faiss.omp_set_num_threads(self._threads)
        fetched = min(wanted * self._manifest.parameters["fetched"], there)
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        # Twice as deep, or half as dense: twice as far.
        further = math.ceil(wanted / _MEASURED * len(self._vectors) / there)
        _, rows = self._index.search(asked, fetched, params=self._how(further, fetched, allowed))
        found = []
        for query, near in zip(asked, rows, strict=True):
            ranked = best_of(self._vectors, near, query, wanted)
            if len(ranked[0]) < wanted:  # a filter cut the graph, or lists that were looked at are short
                exact_rows, exact_scores = self._exactly(query[None], wanted, allowed)
                ranked = exact_rows[0], exact_scores[0]
            found.append(ranked)
        return stacked(found)

    def _exactly(
        self, queries: VectorArray, n: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[IntArray, FloatArray]:
        return FlatIndex(self._vectors, threads=self._threads).search(queries, n, allowed=allowed)

    def _how(self, further: int, fetched: int, allowed: NDArray[np.bool_] | None) -> Any:
        chosen = {} if allowed is None else {"sel": selector(allowed)}
        parameters = self._manifest.parameters
        if self._manifest.kind == "hnsw":
            effort = max(parameters["ef_search"] * further, fetched)
            return faiss.SearchParametersHNSW(efSearch=effort, **chosen)  # type: ignore[attr-defined]
        probes = min(parameters["nprobe"] * further, parameters["lists"])
        return faiss.SearchParametersIVF(nprobe=probes, **chosen)  # type: ignore[call-arg]
