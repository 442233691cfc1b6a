"""The contract of ``evenmesh_retriever.ports.Retriever``, which every backend keeps."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

import evenmesh_models
from evenmesh.wire.errors import FailedPrecondition, InvalidField
from evenmesh_kit.compute import cpu_engine
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.dense.compiled_encoder import CompiledEncoder
from evenmesh_retriever.backends.dense.embedding_api import EmbeddingServer
from evenmesh_retriever.backends.dense.model_options import BUNDLED, ModelOptions
from evenmesh_retriever.backends.dense.remote_encoder import RemoteEncoder
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.backends.milvus import opening
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.follower import Following, FollowingStore
from evenmesh_retriever.backends.segments.quotas import Quotas
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import (
    AnyOf,
    CollectionInfo,
    Condition,
    DeleteReport,
    Filter,
    IngestReport,
    Lexical,
    NumberRange,
    Passage,
    Scored,
    TextRange,
)
from evenmesh_retriever.ports import CannotStart, Encoder, Retriever, Snapshot, TenantCollections
from evenmesh_retriever.settings import RetrieverSettings
from evenmesh_retriever.steps import finish
from tests.support import infinity_server, model_server, tei_grpc_server
from tests.support.milvus_lite_process import MilvusLite, serving
from tests.support.scripted_http import in_thread

BACKENDS = [
    "bm25",
    "bm25 by rank_bm25",
    "bm25-lucene",
    "bm25-plus",
    "bm25-l",
    "dense",
    "hybrid",
    "hybrid by rrf",
    "bm25-lucene in milvus",
    "dense in milvus",
    "hybrid in milvus",
    "hybrid by rrf in milvus",
    "hybrid in a replica",
]

TEXTS = {
    "tyre": (
        "Punctures",
        "How to mend a puncture: find the hole in the tube, roughen it, glue a patch on it.",
    ),
    "chain": (
        "Chains",
        "A dry chain squeaks and wears out. Wipe it, oil every link, wipe off what is too much.",
    ),
    "brake": ("Brakes", "Worn brake pads squeal. Replace the pads when the grooves in them are gone."),
    "light": ("Lights", "A front lamp must be white, a rear lamp red; both are required at night."),
    "lock": ("Locks", "Lock the frame and the front wheel to something that does not move."),
    "soup": ("", "Fry the onions, add the pumpkin and the broth, simmer for twenty minutes and blend."),
    "twin-b": ("Twins", "These two passages say exactly the same."),
    "twin-a": ("Twins", "These two passages say exactly the same."),
}
PASSAGES = [Passage(one, title, text) for one, (title, text) in TEXTS.items()]
IDS = sorted(TEXTS)


@dataclass(frozen=True)
class Setup:
    """One backend with a store that prepares collections for it."""

    retriever: Retriever
    store: TenantCollections
    in_milvus: bool = False
    """There is no reading from an earlier version then, and BM25 is Milvus's."""

    @contextmanager
    def over(self, collection: str) -> Iterator[Snapshot]:
        """A collection to search."""
        with self.store.lease(collection) as snapshot:
            yield snapshot

    def found(self, query: str, n: int, collection: str = "c") -> list[str]:
        """Ids of the best."""
        with self.over(collection) as snapshot:
            rows = self.retriever.search(snapshot, query, n).rows.tolist()
            return [passage.id for passage in snapshot.passages(rows)]


class Followed:
    """Collections that are written by one store and read from another that follows it."""

    def __init__(self, written: TenantCollections, following: FollowingStore) -> None:
        self._written = written
        self._following = following
        read = following.of(DEFAULT_TENANT)
        self.lease, self.describe, self.list = read.lease, read.describe, read.list

    async def create(self, name: str, description: str, lexical: Lexical) -> CollectionInfo:
        found = await self._written.create(name, description, lexical)
        await self._following.look()
        return found

    async def ingest(self, name: str, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        found = await self._written.ingest(name, passages, create=create)
        await self._following.look()
        return found

    async def delete_passages(self, name: str, ids: Sequence[str]) -> DeleteReport:
        found = await self._written.delete_passages(name, ids)
        await self._following.look()
        return found

    async def drop(self, name: str) -> None:
        await self._written.drop(name)
        await self._following.look()


@asynccontextmanager
async def followed(
    root: Path, encoder: Encoder, catalogue: RetrieverCatalogue, of_writer: RetrieverCatalogue
) -> AsyncIterator[Followed]:
    """The collections of a folder by way of a replica, which looks after each write."""
    recipe = SegmentIndexing(cache(analyzer), encoder)
    async with opened(root, encoder, of_writer.prepare) as written:
        following = FollowingStore(root, recipe, catalogue.prepare, Following(look_s=3600, stale_s=3600))
        await following.start()
        try:
            yield Followed(written, following)
        finally:
            await following.stop()


@asynccontextmanager
async def opened(
    root: Path,
    encoder: Encoder | None,
    prepare: Callable[[SegmentSnapshot], None],
    *,
    embed_at_once: int = 5_000,
) -> AsyncIterator[TenantCollections]:
    """The collections of a folder."""
    store = SegmentStore(root, SegmentIndexing(cache(analyzer), encoder, embed_at_once), prepare)
    await store.start()
    try:
        yield store.of(DEFAULT_TENANT)
    finally:
        await store.stop()


@pytest.fixture(scope="session")
def encoder() -> SentenceEncoder:
    """The real default model."""
    return SentenceEncoder()


@pytest.fixture(scope="session")
def collections(encoder: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of collections to copy: ``c`` with the passages above, and an empty one."""
    root = tmp_path_factory.mktemp("contract") / "collections"

    async def fill() -> None:
        async with opened(root, encoder, lambda _: None) as store:
            await store.ingest("c", PASSAGES, create=True)
            await store.create("empty", "", Lexical())

    asyncio.run(fill())
    return root


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusLite]:
    """A Milvus over gRPC."""
    with serving(tmp_path_factory.mktemp("milvus")) as server:
        yield server


@asynccontextmanager
async def backend(
    param: str, encoder: SentenceEncoder, collections: Path, milvus: MilvusLite, folder: Path
) -> AsyncIterator[Setup]:
    """One backend over those collections."""
    named, _, elsewhere = param.partition(" in ")
    name, _, way = named.partition(" by ")
    ways: dict[str, str] = {"hybrid_fusion" if name == "hybrid" else "bm25_engine": way} if way else {}
    if elsewhere == "a replica":
        settings = RetrieverSettings(**ways)
        catalogue, of_writer = (RetrieverCatalogue(settings, cache(analyzer), encoder) for _ in range(2))
        root = shutil.copytree(collections, folder / "collections")
        async with followed(root, encoder, catalogue, of_writer) as store:
            yield Setup(catalogue.retrievers[name], store)
        return
    if elsewhere:
        settings = RetrieverSettings(store="milvus", milvus_uri=milvus.uri, **ways)
        in_milvus, retrievers = opening.opened(settings, encoder, None, Quotas())
        await in_milvus.start()
        catalogue = RetrieverCatalogue(settings, cache(analyzer), encoder, None, retrievers)
        # A tenant for each, so that none sees what another did.
        there = in_milvus.of(f"t-{secrets.token_hex(8)}")
        await there.ingest("c", PASSAGES, create=True)
        await there.create("empty", "", Lexical())
        yield Setup(catalogue.retrievers[name], there, in_milvus=True)
        await in_milvus.stop()
        return
    catalogue = RetrieverCatalogue(RetrieverSettings(**ways), cache(analyzer), encoder)
    root = shutil.copytree(collections, folder / "collections")
    async with opened(root, encoder, catalogue.prepare) as store:
        yield Setup(catalogue.retrievers[name], store)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def kept(
    request: pytest.FixtureRequest,
    encoder: SentenceEncoder,
    collections: Path,
    milvus: MilvusLite,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Setup]:
    """One backend for all tests that change no collection."""
    folder = tmp_path_factory.mktemp("backend")
    async with backend(request.param, encoder, collections, milvus, folder) as found:
        yield found


@pytest.fixture(params=BACKENDS)
async def setup(
    request: pytest.FixtureRequest,
    encoder: SentenceEncoder,
    collections: Path,
    milvus: MilvusLite,
    tmp_path: Path,
) -> AsyncIterator[Setup]:
    """One backend for a test alone."""
    async with backend(request.param, encoder, collections, milvus, tmp_path) as found:
        yield found


def assert_well_formed(scored: Scored, size: int) -> None:
    rows, scores = scored.rows.tolist(), scored.scores.tolist()
    assert len(rows) == len(scores) == size
    assert len(set(rows)) == size
    assert all(math.isfinite(score) for score in scores)
    # Best first, equal scores by ascending row, which is ascending id.
    assert list(zip(scores, rows, strict=True)) == sorted(
        zip(scores, rows, strict=True), key=lambda entry: (-entry[0], entry[1])
    )


@pytest.mark.parametrize("query", ["squealing brake pads", "?!", "the the the", "ночь", "x" * 8192])
@pytest.mark.parametrize("n", [1, 3, 8, 1000])
def test_search_gives_the_n_best(kept: Setup, query: str, n: int) -> None:
    with kept.over("c") as snapshot:
        scored = kept.retriever.search(snapshot, query, n)
        assert_well_formed(scored, min(n, 8))
        everything = kept.retriever.search(snapshot, query, 8)
        assert scored.rows.tolist() == everything.rows.tolist()[:n]
        assert scored.scores.tolist() == everything.scores.tolist()[:n]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("how do I mend a puncture", "tyre"),
        ("brake pads squeal", "brake"),
        ("which lamp is red at night", "light"),
        ("oil the chain link", "chain"),
        ("onions and pumpkin", "soup"),
    ],
)
def test_the_passage_that_answers_comes_first(kept: Setup, query: str, best: str) -> None:
    assert kept.found(query, 3)[0] == best
    ranked = finish(kept.retriever.rank(sorted(PASSAGES, key=lambda passage: passage.id), query))
    assert IDS[ranked.rows[0]] == best


def test_ties_break_by_ascending_id(kept: Setup) -> None:
    assert kept.found("passages that say the same", 2) == ["twin-a", "twin-b"]
    others = [Passage(f"z{number}", "", f"{number} others, unlike") for number in range(9)]
    candidates = [Passage(one, "", "exactly the same") for one in "abcd"] + others
    ranked = finish(kept.retriever.rank(candidates, "the same"))
    assert ranked.rows.tolist()[:4] == [0, 1, 2, 3]


def test_rank_takes_every_candidate(kept: Setup) -> None:
    by_id = sorted(PASSAGES, key=lambda passage: passage.id)
    for query in ("brake pads", "nothing of it"):
        assert_well_formed(finish(kept.retriever.rank(by_id, query)), 8)
    assert_well_formed(finish(kept.retriever.rank(by_id[:1], "brake pads")), 1)
    assert_well_formed(finish(kept.retriever.rank([Passage("a", "", "?")], "?")), 1)


def test_candidates_are_ranked_as_a_collection_of_them_would_be(kept: Setup) -> None:
    by_id = sorted(PASSAGES, key=lambda passage: passage.id)
    with kept.over("c") as snapshot:
        searched = kept.retriever.search(snapshot, "a squeaking chain at night", 8)
        found = [passage.id for passage in snapshot.passages(searched.rows.tolist())]
    ranked = finish(kept.retriever.rank(by_id, "a squeaking chain at night"))
    if kept.in_milvus and kept.retriever.info.name != "dense":
        # Candidates never get to Milvus, so they are scored by our BM25 and collections by Milvus's: the one
        # exception, and the reply says so.
        with kept.over("c") as snapshot:
            assert "differs from evenmesh's" in kept.retriever.note(snapshot)
        assert [by_id[row].id for row in ranked.rows[:2]] == found[:2]
        return
    assert [by_id[row].id for row in ranked.rows] == found
    np.testing.assert_allclose(ranked.scores, searched.scores, rtol=0, atol=1e-6)


async def test_filters_apply_before_ranking(setup: Setup) -> None:
    tagged = [
        Passage(p.id, p.title, p.text, {"group": "ab"[row % 2], "size": str(row * 10)})
        for row, p in enumerate(sorted(PASSAGES, key=lambda passage: passage.id))
    ]
    await setup.store.ingest("c", tagged[:6], create=False)  # the twins have none

    def found(n: int, *conditions: Condition) -> set[str]:
        with setup.over("c") as snapshot:
            scored = setup.retriever.search(snapshot, "brake pads squeal", n, Filter(conditions))
            return {passage.id for passage in snapshot.passages(scored.rows.tolist())}

    even, odd = {p.id for p in tagged[0:6:2]}, {p.id for p in tagged[1:6:2]}
    assert found(100, Condition("group", AnyOf(frozenset("a")))) == even
    assert found(100, Condition("group", AnyOf(frozenset("ab")))) == even | odd
    assert found(2, Condition("group", AnyOf(frozenset("b")))) < odd
    assert found(100, Condition("group", TextRange("b", None))) == odd
    assert found(100, Condition("size", NumberRange(9, 30))) == {p.id for p in tagged[1:4]}
    assert found(100, Condition("size", NumberRange(9, 30)), Condition("group", AnyOf(frozenset("b")))) == {
        tagged[1].id,
        tagged[3].id,
    }
    assert found(100, Condition("group", AnyOf(frozenset("z")))) == set()
    with pytest.raises(
        InvalidField, match="no passage of collection 'c' has an attribute 'colour'"
    ) as missing:
        found(1, Condition("group", AnyOf(frozenset("a"))), Condition("colour", AnyOf(frozenset("a"))))
    assert missing.value.field == "filter.conditions[1].attribute"


def test_an_empty_collection(kept: Setup) -> None:
    with kept.over("empty") as snapshot:
        assert_well_formed(kept.retriever.search(snapshot, "anything", 5), 0)


@pytest.mark.parametrize("query", ["squealing brake pads", "?!", "the the the"])
async def test_all_scores_are_those_of_a_search_for_all(setup: Setup, query: str) -> None:
    # Several segments, some passages gone from them, and a filter.
    tagged = [Passage(p.id, p.title, p.text, {"group": "ab"[row % 2]}) for row, p in enumerate(PASSAGES)]
    await setup.store.ingest("c", tagged[2:5], create=False)
    await setup.store.ingest("c", [Passage("pads", "", "brake pads, brake pads")], create=False)
    await setup.store.delete_passages("c", ["soup"])
    for where in (None, Filter((Condition("group", AnyOf(frozenset("a"))),))):
        with setup.over("c") as snapshot:
            if setup.in_milvus:
                with pytest.raises(FailedPrecondition, match="no score of all of them") as refused:
                    setup.retriever.scores(snapshot, query, where)
                assert refused.value.reason == "NOT_SCORED_WHOLE"
                continue
            everything = setup.retriever.scores(snapshot, query, where)
            scored = dict(zip(everything.rows.tolist(), everything.scores.tolist(), strict=True))
            found = setup.retriever.search(snapshot, query, 100, where)
            assert len(scored) == len(everything.rows) == (8 if where is None else 2)
            for row, score in zip(found.rows.tolist(), found.scores.tolist(), strict=True):
                assert scored.pop(row) == pytest.approx(score, abs=1e-12)
            # A search leaves out what no part of a fusion has found.
            assert all(rest <= min(0.0, *found.scores) for rest in scored.values())


def test_all_scores_of_an_empty_collection(kept: Setup) -> None:
    if kept.in_milvus:
        pytest.skip("collections in Milvus are not scored whole")
    with kept.over("empty") as snapshot:
        assert len(kept.retriever.scores(snapshot, "anything").rows) == 0


async def test_a_new_version_is_searched_once_it_is_served(setup: Setup) -> None:
    with setup.over("c") as before:
        await setup.store.ingest("c", [Passage("pump", "", "pressure of the pump in bar")], create=False)
        assert setup.found("pressure of the pump", 1) == ["pump"]
        if setup.in_milvus:
            # No reading from a version that is past: the exception, which a search that is overtaken notices.
            assert len(setup.retriever.search(before, "pressure of the pump", 100).rows) == 9
            await setup.store.delete_passages("c", ["pump"])
            assert len(setup.retriever.search(before, "pressure of the pump", 100).rows) == 8
            assert "may mix two versions" in setup.retriever.note(before)
            return
        assert len(setup.retriever.search(before, "pressure of the pump", 100).rows) == 8
    await setup.store.delete_passages("c", ["pump"])
    assert "pump" not in setup.found("pressure of the pump", 100)


@pytest.mark.parametrize("name", ["bm25", "bm25-lucene", "dense", "hybrid"])
async def test_a_replica_finds_to_the_last_bit_what_the_writer_finds(
    name: str, encoder: SentenceEncoder, collections: Path, tmp_path: Path
) -> None:
    settings = RetrieverSettings()
    here, there = (RetrieverCatalogue(settings, cache(analyzer), encoder) for _ in range(2))
    root = shutil.copytree(collections, tmp_path / "collections")
    async with followed(root, encoder, here, there) as store:
        for step in range(3):
            await store.ingest("c", [Passage(f"new{step}", "", f"brake pads, time {step}")], create=False)
            await store.delete_passages("c", [IDS[step]])
            with store.lease("c") as mine, store._written.lease("c") as theirs:
                assert mine.info.version == theirs.info.version
                for query in ("squealing brake pads", "the the the"):
                    found = here.retrievers[name].search(mine, query, 100)
                    wanted = there.retrievers[name].search(theirs, query, 100)
                    assert found.rows.tolist() == wanted.rows.tolist()
                    assert found.scores.tobytes() == wanted.scores.tobytes()


def test_threads_do_not_disturb_each_other(kept: Setup) -> None:
    queries = ["brake pads", "red lamp", "mend the tube", "oil", "wheel and frame"] * 4
    with kept.over("c") as snapshot, ThreadPoolExecutor(4) as threads:

        def search(query: str) -> list[float]:
            return kept.retriever.search(snapshot, query, 8).scores.tolist()

        assert list(threads.map(search, queries)) == [search(query) for query in queries]


def test_it_says_what_it_runs_on(kept: Setup) -> None:
    info = kept.retriever.info
    assert info.name in {backend.split(" ")[0] for backend in BACKENDS}
    assert info.description
    assert "\n" not in info.description
    assert info.device == "cpu" or info.device.startswith("cuda")
    assert (info.model == BUNDLED) == (info.name in ("dense", "hybrid"))


# The encoder behind two of them.


class Exact(SentenceEncoder):
    """The real default model in float32, which computes the vector of a text once."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}
        super().__init__(precision="fp32")

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        if new := [text for text in texts if text not in self._kept]:
            self._kept |= zip(new, super().vectors(new), strict=True)
        return np.stack([self._kept[text] for text in texts])


@pytest.fixture(scope="module")
def exact() -> Exact:
    """What others are compared with."""
    return Exact()


@pytest.fixture(
    scope="module",
    params=["in the process", "in OpenVINO", "remote", "remote over gRPC", "remote by infinity"],
)
def any_encoder(
    request: pytest.FixtureRequest,
    encoder: SentenceEncoder,
    exact: Exact,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Encoder]:
    """The real default model, wherever it computes."""
    if request.param == "in the process":
        yield encoder
        return
    if request.param == "in OpenVINO":
        if cpu_engine.installed_version() is None:
            pytest.skip("openvino is not installed")
        kept = Conversions.of_user(
            tmp_path_factory.mktemp("openvino")
        )  # as the services of the other tests use
        yield CompiledEncoder(BUNDLED, ModelOptions(), conversions=kept)
        return
    with ExitStack() as stack:
        server: EmbeddingServer
        if request.param in ("remote", "remote over gRPC"):

            def computed(texts: Sequence[str]) -> list[list[float]]:
                return embed(exact, texts).tolist()

            server = "tei"
        if request.param == "remote over gRPC":
            url = stack.enter_context(tei_grpc_server.in_thread(embed=computed, model=BUNDLED)).url
        elif request.param == "remote":
            script = model_server.tei(embed=computed, model=BUNDLED)
            url, server = stack.enter_context(in_thread(script)).url, "tei"
        else:
            log = tmp_path_factory.mktemp("infinity") / "infinity.log"
            infinity = infinity_server.serving(evenmesh_models.minilm(), BUNDLED, log)
            url, server = stack.enter_context(infinity).url, "openai"
        settings = RetrieverSettings(
            encoder="remote",
            remote_urls=(url,),
            remote_server=server,
            remote_model=BUNDLED,
        )
        client = settings.remote_client(tei=server == "tei")
        remote = RemoteEncoder(client, server=settings.remote_server, model=BUNDLED)
        stack.callback(remote.close)
        yield remote


def embed(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    return encoder.encode_passages(texts, lambda _: None)


def test_vectors_have_length_one_and_equal_texts_equal_vectors(any_encoder: Encoder) -> None:
    encoder = any_encoder
    texts = ["a short text", "a much longer text " * 20, "a short text", ""] * 10
    done: list[int] = []
    vectors = encoder.encode_passages(texts, done.append)
    assert vectors.shape == (40, encoder.dimension)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(vectors[0::4], vectors[2::4])
    assert done[-1] == 3  # distinct texts
    assert len(embed(encoder, [])) == 0


def test_a_query_gets_the_same_vector_every_time(any_encoder: Encoder) -> None:
    with ThreadPoolExecutor(3) as threads:
        vectors = list(threads.map(any_encoder.encode_query, ["which lamp?", "which lock is the best?"] * 6))
    # Servers read what many ask at a time in one batch, whose shape changes the last bits.
    rounding = 1e-5 if isinstance(any_encoder, RemoteEncoder) else 0.0
    for row, vector in enumerate(vectors):
        np.testing.assert_allclose(vector, vectors[row % 2], rtol=0, atol=rounding)


def test_vectors_are_those_of_the_model_in_the_process(any_encoder: Encoder, exact: Exact) -> None:
    texts = [*(passage.content for passage in PASSAGES), "", "?!", "ночь", "a front lamp " * 200]
    least = 0.9999 if isinstance(any_encoder, RemoteEncoder) else 0.999  # that in the process may be in bf16
    assert (embed(exact, texts) * embed(any_encoder, texts)).sum(axis=1).min() >= least
    for text in texts:
        assert exact.encode_query(text) @ any_encoder.encode_query(text) >= least
    assert (any_encoder.name, any_encoder.dimension) == (exact.name, exact.dimension)


async def cranfield_gain(encoder: Encoder, folder: Path) -> float:
    """nDCG@10 of 20 queries over the passages that somebody judged for them."""
    relevant, queries, passages = cranfield(20)
    catalogue = RetrieverCatalogue(RetrieverSettings(), cache(analyzer), encoder)
    async with opened(folder, encoder, catalogue.prepare) as store:
        await store.ingest("cranfield", passages, create=True)
        return ndcg(Setup(catalogue.retrievers["dense"], store), relevant, queries, "cranfield")


@pytest.fixture(scope="module")
def exact_gain(exact: Exact, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What the model in the process has of it."""
    return asyncio.run(cranfield_gain(exact, tmp_path_factory.mktemp("exact")))


def test_cranfield_is_ranked_as_by_the_model_in_the_process(
    any_encoder: Encoder, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if isinstance(any_encoder, SentenceEncoder):
        pytest.skip("it is the model in the process")
    if request.node.callspec.params["any_encoder"] == "remote over gRPC":
        pytest.skip("its vectors are those of TEI over HTTP, and a call for each text takes a while")
    exact_gain: float = request.getfixturevalue("exact_gain")
    assert asyncio.run(cranfield_gain(any_encoder, tmp_path)) == pytest.approx(exact_gain, abs=1e-3)
    assert exact_gain > 0.5


def test_bf16_is_close_to_fp32() -> None:
    texts = [passage.content for passage in PASSAGES]
    exact = SentenceEncoder(precision="fp32")
    rough = SentenceEncoder(precision="bf16")
    assert (exact.precision, rough.precision) == ("fp32", "bf16")
    assert exact.fingerprint == rough.fingerprint  # the same weights
    cosines = (embed(exact, texts) * embed(rough, texts)).sum(axis=1)
    assert cosines.min() >= 0.999


@pytest.mark.parametrize("model", ["/no/such/folder", "no-one/has-such-a-model"])
def test_a_missing_model_is_one_line_that_names_the_setting(model: str) -> None:
    with pytest.raises(CannotStart, match=rf"^EVENMESH_RETRIEVER_ENCODER='{model}': no such folder") as error:
        SentenceEncoder(model, setting="EVENMESH_RETRIEVER_ENCODER")
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"^S='.*': cannot be loaded on cpu: ") as error:
        SentenceEncoder(str(tmp_path), setting="S")
    assert "\n" not in str(error.value)


async def test_a_collection_without_vectors_gets_them_in_the_background(
    encoder: SentenceEncoder, tmp_path: Path
) -> None:
    async with opened(tmp_path, None, lambda _: None) as lexical:
        made = await lexical.ingest("c", PASSAGES, create=True)
        assert (made.collection.encoder, made.collection.embedded) == ("", 0)

    catalogue = RetrieverCatalogue(RetrieverSettings(), cache(analyzer), encoder)
    store = SegmentStore(tmp_path, SegmentIndexing(cache(analyzer), encoder), catalogue.prepare)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    dense, hybrid, bm25 = (
        Setup(catalogue.retrievers[name], collections) for name in ("dense", "hybrid", "bm25-lucene")
    )
    with collections.lease("c") as before:
        await store.settled()
        with pytest.raises(FailedPrecondition, match="has a vector of 'all-MiniLM-L6-v2' yet") as refused:
            dense.retriever.search(before, "brake pads", 1)
        assert refused.value.reason == "NOT_EMBEDDED"
        assert hybrid.retriever.note(before) == "0.0% of the passages have a vector yet"
        assert IDS[hybrid.retriever.search(before, "brake pads", 1).rows[0]] == "brake"
    assert bm25.found("brake pads", 1) == dense.found("brake pads", 1) == ["brake"]
    after = collections.describe("c")
    assert (after.encoder, after.embedded, after.num_passages) == (BUNDLED, 1, 8)
    assert after.version != made.collection.version
    with collections.lease("c") as snapshot:
        assert hybrid.retriever.note(snapshot) == ""
    await store.stop()


async def test_vectors_of_many_passages_follow_and_what_has_one_is_found(
    encoder: SentenceEncoder, tmp_path: Path
) -> None:
    catalogue = RetrieverCatalogue(RetrieverSettings(), cache(analyzer), encoder)
    store = SegmentStore(tmp_path, SegmentIndexing(cache(analyzer), encoder, 5), catalogue.prepare)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    await collections.ingest("c", PASSAGES[:4], create=True)
    assert collections.describe("c").embedded == 1
    dense = Setup(catalogue.retrievers["dense"], collections)
    await collections.ingest(
        "c", [*PASSAGES[4:], *(Passage(f"x{n}", "", f"thing {n}") for n in range(8))], create=False
    )
    with collections.lease("c") as snapshot:
        assert snapshot.info.embedded == 4 / 16
        assert dense.retriever.note(snapshot) == "25.0% of the passages have a vector yet"
        found = dense.retriever.search(snapshot, "onions and pumpkin", 16)
        assert sorted(p.id for p in snapshot.passages(found.rows.tolist())) == [
            "brake",
            "chain",
            "light",
            "tyre",
        ]
        hybrid = catalogue.retrievers["hybrid"].search(snapshot, "onions and pumpkin", 16)
        assert "soup" in {p.id for p in snapshot.passages(hybrid.rows.tolist())}
    await store.settled()
    assert collections.describe("c").embedded == 1
    assert dense.found("onions and pumpkin", 1) == ["soup"]
    await store.stop()


async def test_only_what_is_new_is_encoded(encoder: SentenceEncoder, tmp_path: Path) -> None:
    class Counting:
        """The real encoder, counting."""

        encoded: tuple[str, ...] = ()
        name, fingerprint, dimension = encoder.name, encoder.fingerprint, encoder.dimension
        device, precision, encode_query = encoder.device, encoder.precision, encoder.encode_query

        def encode_passages(self, texts: Sequence[str], progress: object) -> np.ndarray:
            self.encoded += tuple(texts)
            return encoder.encode_passages(texts, progress)  # type: ignore[arg-type]

    counting = Counting()
    async with opened(tmp_path, counting, lambda _: None) as store:
        await store.ingest("c", PASSAGES[:3], create=True)
        counting.encoded = ()
        moved = Passage("elsewhere", PASSAGES[0].title, PASSAGES[0].text)
        tagged = Passage(PASSAGES[1].id, PASSAGES[1].title, PASSAGES[1].text, {"provider": "p"})
        report = await store.ingest(
            "c", [moved, tagged, PASSAGES[2], Passage("new", "", "new words")], create=False
        )
        assert (report.added, report.replaced, report.unchanged) == (2, 1, 1)
        assert counting.encoded == ("new words",)
        with store.lease("c") as snapshot:
            assert isinstance(snapshot, SegmentSnapshot)
            kept = {
                view.segment.passage(row).id: view.dense.vectors[row]
                for view in snapshot.views
                if view.dense is not None
                for row in view.rows.tolist()
            }
        np.testing.assert_array_equal(kept["elsewhere"], kept[PASSAGES[0].id])
        assert len(kept) == 5


# What it is all for.


def shared(folder: str) -> Path:
    """A folder of the shared data sets."""
    root = Path(os.environ.get("EVENMESH_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (root / folder).is_dir():
        pytest.skip(f"{folder} is not among the shared data sets of this machine")
    return root / folder


def rows(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def cranfield(most: int | None = None) -> tuple[dict[str, set[str]], dict[str, str], list[Passage]]:
    """Relevant ids by query, the queries, and the passages; of the first queries only those judged for them."""
    folder = shared("cranfield")
    relevant: dict[str, set[str]] = {}
    judged: set[str] = set()
    for row in rows(folder / "qrels.jsonl.gz"):
        query_id = str(row["query_id"])
        if most is not None and query_id not in relevant and len(relevant) == most:
            continue
        judged.add(str(row["doc_id"]))
        if row["relevance"]:
            relevant.setdefault(query_id, set()).add(str(row["doc_id"]))
    queries = {str(row["id"]): str(row["query"]) for row in rows(folder / "queries.jsonl.gz")}
    passages = [
        Passage(str(row["id"]), str(row["title"]), str(row["text"]))
        for row in rows(folder / "documents.jsonl.gz")
        if most is None or str(row["id"]) in judged
    ]
    return relevant, queries, passages


def ndcg(setup: Setup, relevant: dict[str, set[str]], queries: dict[str, str], collection: str) -> float:
    """Mean nDCG@10 with gains of 0 and 1."""
    gains = []
    for query_id, wanted in relevant.items():
        found = setup.found(queries[query_id], 10, collection)
        gain = sum(1 / math.log2(rank + 1) for rank, one in enumerate(found, start=1) if one in wanted)
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(10, len(wanted)) + 1))
        gains.append(gain / ideal)
    return float(np.mean(gains))


@pytest.mark.parametrize("name", ["bm25", "bm25-lucene"])
async def test_cranfield_is_found_better_than_its_card_says(name: str, tmp_path: Path) -> None:
    relevant, queries, passages = cranfield()
    catalogue = RetrieverCatalogue(RetrieverSettings(encoder=""), cache(analyzer), None)
    async with opened(tmp_path, None, catalogue.prepare) as store:
        await store.ingest("cranfield", passages, create=True)
        found = ndcg(Setup(catalogue.retrievers[name], store), relevant, queries, "cranfield")
    assert found > 0.3536  # what the card's own recipe, which stems plurals alone, gets
