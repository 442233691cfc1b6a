"""Dense indexes: built by size, tuned by measuring, opened from files."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from evenmesh_retriever.backends.dense import build as dense
from evenmesh_retriever.backends.dense.approximate import ApproximateIndex
from evenmesh_retriever.backends.dense.flat import FlatIndex
from evenmesh_retriever.backends.dense.manifest import (
    FILE_NAME,
    INDEX_NAME,
    CorruptIndex,
    DenseManifest,
    Kind,
)
from evenmesh_retriever.backends.dense.rescoring import products
from evenmesh_retriever.domain import VectorArray

SIZE, DIMENSION = 12_000, 32


@pytest.fixture(scope="module")
def vectors() -> VectorArray:
    """Unit vectors around 60 centres: more than are compared one by one."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((60, DIMENSION))
    drawn = centres[rng.integers(0, 60, SIZE)] + 0.7 * rng.standard_normal((SIZE, DIMENSION))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def queries(vectors: VectorArray) -> VectorArray:
    """Near vectors of the collection, as questions are near their answers."""
    rng = np.random.default_rng(9)
    drawn = vectors[rng.integers(0, SIZE, 40)] + 0.15 * rng.standard_normal((40, DIMENSION)).astype(
        np.float32
    )
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture(scope="module", params=["hnsw", "ivf-pq"])
def folder(
    request: pytest.FixtureRequest, vectors: VectorArray, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One index of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    dense.build(vectors, folder, kinds=[request.param])
    return folder


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)]))


def test_the_kind_goes_by_size() -> None:
    assert dense._kinds(0) == dense._kinds(dense.FLAT_UP_TO) == ("flat",)
    assert dense._kinds(dense.FLAT_UP_TO + 1)[0] == dense._kinds(dense.HNSW_UP_TO)[0] == "hnsw"
    assert dense._kinds(dense.HNSW_UP_TO + 1)[0] == "ivf-pq"


def test_small_ones_are_flat_and_need_no_file(vectors: VectorArray, tmp_path: Path) -> None:
    done: list[int] = []
    manifest = dense.build(vectors[:100], tmp_path, progress=done.append)
    assert manifest == DenseManifest(kind="flat", num_vectors=100, dimension=DIMENSION, recall_at_100=1.0)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert done == [100]
    assert isinstance(dense.open(tmp_path, vectors[:100]), FlatIndex)


def test_recall_is_what_the_manifest_says(folder: Path, vectors: VectorArray, queries: VectorArray) -> None:
    manifest = DenseManifest.read(folder)
    assert manifest.kind == folder.name.rstrip("0123456789")
    assert manifest.recall_at_100 >= 0.95
    assert (manifest.num_vectors, manifest.dimension) == vectors.shape
    index = dense.open(folder, vectors)
    assert isinstance(index, ApproximateIndex)
    exact, _ = FlatIndex(vectors).search(queries, 100)
    found, _ = index.search(queries, 100)
    assert recall(found, exact) >= 0.9  # other queries than it was tuned with
    deep, _ = index.search(queries, 1000)
    assert recall(deep, FlatIndex(vectors).search(queries, 1000)[0]) >= 0.9


def test_scores_are_exact_and_best_first(folder: Path, vectors: VectorArray, queries: VectorArray) -> None:
    rows, scores = dense.open(folder, vectors).search(queries, 50)
    assert rows.shape == scores.shape == (40, 50)
    for query, found, values in zip(queries, rows, scores, strict=True):
        assert len(set(found.tolist())) == 50
        assert values.tolist() == products(vectors[found], query).tolist()
        order = sorted(zip(-values, found, strict=True))
        assert [row for _, row in order] == found.tolist()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_only_what_is_allowed_is_found(
    folder: Path, vectors: VectorArray, queries: VectorArray, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh_retriever.backends.dense.approximate._FEW", 100)
    allowed = np.random.default_rng(2).random(SIZE) < share
    index = dense.open(folder, vectors)
    rows, scores = index.search(queries, 100, allowed=allowed)
    assert rows.shape == scores.shape == (40, 100)
    assert allowed[rows].all()
    exact, _ = FlatIndex(vectors).search(queries, 100, allowed=allowed)
    assert recall(rows, exact) >= 0.9
    few = np.zeros(SIZE, dtype=np.bool_)
    few[[5, 70, 11_999]] = True
    assert sorted(index.search(queries[:1], 100, allowed=few)[0][0].tolist()) == [5, 70, 11_999]


def test_a_filter_that_cuts_the_graph_still_fills_the_pool(
    folder: Path, vectors: VectorArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh_retriever.backends.dense.approximate._FEW", 1)
    monkeypatch.setattr("evenmesh_retriever.backends.dense.approximate._SHARE", 0.0)
    query = vectors[:1]
    # All that is allowed lies on the far side.
    allowed = np.zeros(SIZE, dtype=np.bool_)
    allowed[np.argsort(vectors @ query[0])[:150]] = True
    rows, _ = dense.open(folder, vectors).search(query, 100, allowed=allowed)
    assert rows.shape == (1, 100)
    assert allowed[rows].all()


def test_a_kind_that_misses_the_target_is_dropped_for_the_next(vectors: VectorArray, tmp_path: Path) -> None:
    # 2 million candidates cannot make up for a graph that is never looked at: recall 1.01 is out of reach.
    manifest = dense.build(vectors, tmp_path, target_recall=1.01, kinds=["ivf-pq"])
    assert manifest.kind == "flat"
    assert manifest.recall_at_100 == 1.0
    assert set(manifest.tried) == {"ivf-pq"}
    assert not (tmp_path / INDEX_NAME).exists()


def test_the_least_effort_that_does_is_taken(vectors: VectorArray, tmp_path: Path) -> None:
    low = dense.build(vectors, tmp_path, target_recall=0.5, kinds=["ivf-pq"]).parameters
    high = dense.build(vectors, tmp_path, target_recall=0.99, kinds=["ivf-pq"]).parameters
    assert (low["nprobe"], low["fetched"]) <= (high["nprobe"], high["fetched"])
    assert (low["nprobe"], low["fetched"]) != (high["nprobe"], high["fetched"])


def test_building_can_be_stopped(vectors: VectorArray, tmp_path: Path) -> None:
    class Enough(Exception):  # noqa: N818
        """Raised by the progress callback."""

    def stop(done: int) -> None:
        raise Enough(done)

    with pytest.raises(Enough, match="12000"):
        dense.build(vectors, tmp_path, kinds=["ivf-pq"], progress=stop)


def test_inverted_lists_with_codes_of_8_bits_as_earlier_versions_built_them_are_searched(
    vectors: VectorArray, queries: VectorArray, tmp_path: Path
) -> None:
    quantizer = faiss.IndexFlatIP(DIMENSION)
    index = faiss.IndexIVFPQ(quantizer, DIMENSION, 64, 4, 8, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / INDEX_NAME))
    DenseManifest(
        kind="ivf-pq",
        num_vectors=SIZE,
        dimension=DIMENSION,
        recall_at_100=0.99,
        parameters={"lists": 64, "codes": 4, "nprobe": 32, "fetched": 16},
    ).write(tmp_path)
    exact, _ = FlatIndex(vectors).search(queries, 100)
    allowed = np.arange(SIZE) % 12 != 0
    found, _ = dense.open(tmp_path, vectors).search(queries, 100)
    filtered, _ = dense.open(tmp_path, vectors).search(queries, 100, allowed=allowed)
    assert recall(found, exact) > 0.9
    assert allowed[filtered].all()


@pytest.mark.parametrize("kind", ["flat", "ivf-pq"])
def test_what_is_not_the_index_of_the_vectors_is_refused_by_name(
    kind: Kind, vectors: VectorArray, tmp_path: Path
) -> None:
    dense.build(vectors, tmp_path, kinds=[kind])
    with pytest.raises(CorruptIndex, match="is of 12000 vectors of 32 dimensions, not of 11999 of 32"):
        dense.open(tmp_path, vectors[1:])
    if kind != "flat":
        other = faiss.IndexFlatIP(DIMENSION)
        faiss.write_index(other, str(tmp_path / INDEX_NAME))
        with pytest.raises(CorruptIndex, match=r"dense\.faiss is of 0 vectors"):
            dense.open(tmp_path, vectors)
        (tmp_path / INDEX_NAME).write_bytes(b"no index")
        with pytest.raises(CorruptIndex, match=r"dense\.faiss is missing or no FAISS index"):
            dense.open(tmp_path, vectors)
    (tmp_path / FILE_NAME).write_text("{}")
    with pytest.raises(CorruptIndex, match=r"dense\.json is not the manifest of a dense index"):
        dense.open(tmp_path, vectors)
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(CorruptIndex, match=r"dense\.json cannot be read"):
        dense.open(tmp_path, vectors)
