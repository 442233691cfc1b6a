"""The thread that owns a GPU, with an index of the processor in its place; and the GPU where there is one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from evenmesh_retriever.backends import catalogue
from evenmesh_retriever.backends.dense import gpu
from evenmesh_retriever.backends.dense.build import on_gpu
from evenmesh_retriever.backends.dense.flat import FlatIndex
from evenmesh_retriever.backends.dense.gpu import GpuFlatIndex, GpuOwner, why_not
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.settings import RetrieverSettings


class Recording:
    """A flat index that notes which thread searched it, and how many queries came together."""

    def __init__(self, vectors: VectorArray) -> None:
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)
        self.threads: set[int] = set()
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.was_reset = threading.Event()
        self.fails = False

    def search(self, queries: VectorArray, n: int) -> tuple[np.ndarray, np.ndarray]:
        self.entered.set()
        self.gate.wait()
        self.threads.add(threading.get_ident())
        self.batches.append(len(queries))
        if self.fails:
            raise RuntimeError("out of memory on the device")
        return self._index.search(queries, n)  # type: ignore[no-any-return]

    def reset(self) -> None:
        self.was_reset.set()


def unit(n: int, d: int = 16) -> VectorArray:
    vectors = np.random.default_rng(n).standard_normal((n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def owner() -> Iterator[GpuOwner]:
    owner = GpuOwner(resources=object(), to_device=Recording, max_bytes=300 * 16 * 4)
    yield owner
    owner.close()


def test_results_are_those_of_the_processor(owner: GpuOwner) -> None:
    vectors, queries = unit(300), unit(7)
    beside = FlatIndex(vectors)
    index = GpuFlatIndex(owner, vectors, beside)
    for n in (1, 10, 300, 1000):
        for one, other in zip(index.search(queries, n), beside.search(queries, n), strict=True):
            assert one.tolist() == other.tolist()
    assert owner.device == "cuda:0"


def test_one_thread_searches_and_takes_what_waits_together(owner: GpuOwner) -> None:
    vectors, queries = unit(300), unit(20)
    index = GpuFlatIndex(owner, vectors, FlatIndex(vectors))
    recording = index._index
    recording.gate.clear()
    with ThreadPoolExecutor(20) as threads:
        waiting = [threads.submit(index.search, queries[:1], 5)]
        assert recording.entered.wait(30)  # the first is being searched, so all others wait
        for i, query in enumerate(queries[1:], start=1):
            waiting.append(threads.submit(index.search, query[None], 5 + i))
        while owner._jobs.qsize() < 19:
            threading.Event().wait(0.001)
        recording.gate.set()
        found = [future.result() for future in waiting]
    expected = [FlatIndex(vectors).search(query[None], 5 + i) for i, query in enumerate(queries)]
    assert [rows.tolist() for rows, _ in found] == [rows.tolist() for rows, _ in expected]
    assert recording.batches == [1, 19]
    assert recording.threads == {owner._thread.ident}


def test_what_the_gpu_cannot_do_the_processor_does(owner: GpuOwner) -> None:
    vectors, queries = unit(300), unit(2)
    index = GpuFlatIndex(owner, vectors, FlatIndex(vectors))
    allowed = np.arange(300) % 3 == 0
    rows, _ = index.search(queries, 20, allowed=allowed)
    assert allowed[rows].all()
    assert index._index.batches == []
    index._index.fails = True
    rows, _ = index.search(queries, 20)
    assert rows.tolist() == FlatIndex(vectors).search(queries, 20)[0].tolist()
    assert index._index.batches == [2]


def test_memory_is_counted_and_given_back(owner: GpuOwner) -> None:
    vectors = unit(300)
    assert owner.fits(vectors)
    index = GpuFlatIndex(owner, vectors, FlatIndex(vectors))
    assert not owner.fits(unit(1))
    recording = index._index
    del index
    assert recording.was_reset.wait(5)
    assert owner.fits(vectors)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")
def test_on_a_real_gpu() -> None:
    vectors, queries = unit(5000, 64), unit(50, 64)
    owner = GpuOwner()
    try:
        index, beside = GpuFlatIndex(owner, vectors, FlatIndex(vectors)), FlatIndex(vectors)
        for one, other in zip(index.search(queries, 100), beside.search(queries, 100), strict=True):
            assert one.tolist() == other.tolist()
    finally:
        owner.close()


def test_what_does_not_fit_stays_on_the_processor(owner: GpuOwner) -> None:
    assert isinstance(on_gpu(owner, unit(300)), GpuFlatIndex)
    assert on_gpu(owner, unit(301)) is None

    def full(vectors: VectorArray) -> Recording:
        raise RuntimeError("out of memory on the device")

    other = GpuOwner(resources=object(), to_device=full)
    try:
        assert on_gpu(other, unit(10)) is None
    finally:
        other.close()


def test_a_required_gpu_without_a_search_there_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAISS for processors is installed, or sees no GPU: refused unless vectors are to be searched elsewhere."""
    monkeypatch.setattr(gpu, "why_not", lambda: "FAISS sees no GPU")

    class _Encoder:
        name, precision, device = "m", "fp32", "cuda:0"

    encoder: Any = _Encoder()
    with pytest.raises(
        CannotStart,
        match=r"EVENMESH_RETRIEVER_REQUIRE_GPU=true.*FAISS sees no GPU; EVENMESH_RETRIEVER_DENSE_GPU_BYTES=0",
    ):
        catalogue._dense(RetrieverSettings(require_gpu=True), encoder)
    for settings in (RetrieverSettings(require_gpu=True, dense_gpu_bytes=0), RetrieverSettings()):
        assert catalogue._dense(settings, encoder).info.engine == "faiss"
