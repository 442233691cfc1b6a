"""Search vectors on a GPU through ``faiss-gpu``, where both are there.

FAISS's GPU resources must be used by one thread at a time, so one thread owns them. Queries that arrive while
it is busy are searched together next.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.dense.flat import FlatIndex
from evenmesh_retriever.backends.dense.rescoring import best_of, stacked
from evenmesh_retriever.domain import FloatArray, IntArray, VectorArray

# FAISS's GPU scan gives at most this many per query.
_MOST: Final = 2048
_MARGIN: Final = 16
_MOST_TOGETHER: Final = 256

_log = logging.getLogger("evenmesh.retriever.dense")


def why_not() -> str:
    """Return why there is no search on a GPU; empty if there is one."""
    if not hasattr(faiss, "StandardGpuResources"):
        return "the FAISS that is installed is the one for processors (faiss-gpu is not there)"
    if not faiss.get_num_gpus():
        return "FAISS sees no GPU"
    return ""


@dataclass(slots=True, eq=False)
class _Job:
    """Something for the owner thread to do; searches of one index may be done together."""

    run: Any
    index: Any = None
    queries: VectorArray | None = None
    n: int = 0
    done: Future[Any] = field(default_factory=Future)


class GpuOwner:
    """The thread that owns a GPU's resources.

    Args:
        device: number of the GPU.
        max_bytes: memory that vectors may take there. Bytes.
        resources: what FAISS works with there; None makes it. Anything where ``to_device`` is given.
        to_device: puts a flat index of the vectors there; None: FAISS's way.
    """

    def __init__(
        self, device: int = 0, *, max_bytes: int = 16 * 2**30, resources: Any = None, to_device: Any = None
    ) -> None:
        self._device = device
        self._left = max_bytes
        self._resources = resources
        self._to_device = to_device or self._copied
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"faiss-gpu-{device}", daemon=True)
        self._thread.start()

    @property
    def device(self) -> str:
        """``cuda:0``."""
        return f"cuda:{self._device}"

    def fits(self, vectors: VectorArray) -> bool:
        """Return whether there is room for them."""
        return 0 < vectors.size * 4 <= self._left

    def load(self, vectors: VectorArray) -> Any:
        """Copy vectors to the GPU."""
        job = _Job(run=lambda: self._to_device(vectors))
        self._jobs.put(job)
        index = job.done.result()
        self._left -= vectors.size * 4
        return index

    def unload(self, index: Any, size: int) -> None:
        """Free what :meth:`load` took, ``size`` bytes, on the thread that owns it."""
        self._left += size
        if hasattr(index, "reset"):
            self._jobs.put(_Job(run=index.reset))

    def search(self, index: Any, queries: VectorArray, n: int) -> tuple[VectorArray, IntArray]:
        """Return similarities and rows, ``[q, n]``."""
        job = _Job(run=None, index=index, queries=np.ascontiguousarray(queries, dtype=np.float32), n=n)
        self._jobs.put(job)
        similarities, rows = job.done.result()
        return similarities, rows

    def close(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)
        self._thread.join()

    def _copied(self, vectors: VectorArray) -> Any:
        if self._resources is None:
            self._resources = faiss.StandardGpuResources()
        options = faiss.GpuIndexFlatConfig()
        options.device = self._device
        index = faiss.GpuIndexFlatIP(self._resources, vectors.shape[1], options)
        index.add(np.ascontiguousarray(vectors))
        return index

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while len(jobs) < _MOST_TOGETHER and jobs[-1] is not None:
                try:
                    jobs.append(self._jobs.get_nowait())
                except queue.Empty:
                    break
            ends = jobs[-1] is None
            _answer([job for job in jobs if job is not None])
            if ends:
                return


def _answer(jobs: list[_Job]) -> None:
    """Do jobs in order, searches of one index that follow each other together."""
    for index, group in itertools.groupby(jobs, key=lambda job: job.index):
        together = list(group)
        try:
            if index is None:
                for job in together:
                    job.done.set_result(job.run())
                continue
            asked = np.concatenate([job.queries for job in together if job.queries is not None])
            similarities, rows = index.search(asked, max(job.n for job in together))
        except RuntimeError as error:  # what FAISS raises
            for job in together:
                if not job.done.done():
                    job.done.set_exception(error)
            continue
        begin = 0
        for job in together:
            end = begin + (0 if job.queries is None else len(job.queries))
            job.done.set_result((similarities[begin:end, : job.n], rows[begin:end, : job.n]))
            begin = end


class GpuFlatIndex:
    """All vectors compared on a GPU; exact scores from the processor's copy, so they are the same everywhere.

    Filters are not known to FAISS's GPU scan: a filtered search runs on the processor, and so does one for
    more than the scan gives.

    Args:
        owner: the GPU.
        vectors: ``[n, d]``.
        beside: the same vectors on the processor.
    """

    def __init__(self, owner: GpuOwner, vectors: VectorArray, beside: FlatIndex) -> None:
        self._owner = owner
        self._vectors = vectors
        self._beside = beside
        self._index = owner.load(vectors)
        weakref.finalize(self, owner.unload, self._index, vectors.size * 4)

    def search(
        self, queries: VectorArray, n: int, *, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """For each query rows ``[q, m]`` and exact scores ``[q, m]``, best first, equal ones by row."""
        wanted = min(n, len(self._vectors))
        fetched = min(wanted + _MARGIN, len(self._vectors))
        if allowed is not None or fetched > _MOST or not wanted:
            return self._beside.search(queries, n, allowed=allowed)
        try:
            _, rows = self._owner.search(self._index, queries, fetched)
        except RuntimeError:
            _log.exception("a search on the GPU failed; the processor answers")
            return self._beside.search(queries, n)
        return stacked(
            [best_of(self._vectors, near, query, wanted) for near, query in zip(rows, queries, strict=True)]
        )
