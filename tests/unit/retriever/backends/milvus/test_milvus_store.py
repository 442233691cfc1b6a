"""Collections in a Milvus over gRPC: versions, repeats, what is cut off, quotas, filters that try to escape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from threading import Event, Semaphore
from typing import Any

import numpy as np
import pytest
from pymilvus import MilvusClient

from evenmesh.wire.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Unavailable,
)
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.milvus.connection import Connection, Row
from evenmesh_retriever.backends.milvus.opening import opened
from evenmesh_retriever.backends.milvus.registry import DenseKind, Registry
from evenmesh_retriever.backends.milvus.retrievers import over_milvus
from evenmesh_retriever.backends.milvus.rows import DENSE
from evenmesh_retriever.backends.milvus.snapshot import MilvusSnapshot
from evenmesh_retriever.backends.milvus.store import MilvusIndexing, MilvusStore
from evenmesh_retriever.backends.segments.quotas import Limit, Quotas
from evenmesh_retriever.backends.splade.postings import SparseVector
from evenmesh_retriever.domain import AnyOf, CollectionInfo, Condition, Filter, Lexical, Passage, TextRange
from evenmesh_retriever.ports import CannotStart, TenantCollections
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.milvus_lite_process import MilvusLite, serving

ODD = [
    Passage("a'\"\\;--", "", "Text\nwith\r\nlines\tand \x01", {'we"ird\\': 'va"l\nue', "n": "1e3"}),
    Passage("b", "Only a title", "", {"ünï/co~de": "ночь"}),
    Passage("c", " and ", " blanks ", {}),
]
PLAIN = [Passage(f"p{number:02}", "", f"passage number {number}") for number in range(20)]


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusLite]:
    with serving(tmp_path_factory.mktemp("milvus")) as server:
        yield server


class Failing(Connection):
    """The real connection, which fails at the change that it is reported to."""

    fails_at: int | None = None
    answers = True
    """Whether it says that a record was written, which it was."""

    def upsert(self, place: str, rows: Sequence[Row]) -> None:
        if place == "evenmesh_collections" and not self.answers:
            super().upsert(place, rows)
            raise DeadlineExceeded("Milvus did not answer within 10 s")
        if place != "evenmesh_collections" and self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise Unavailable("MILVUS_UNAVAILABLE", "Milvus cannot be reached")
        super().upsert(place, rows)


class Held:
    """A store with its connection."""

    def __init__(self, uri: str, recipe: MilvusIndexing) -> None:
        self.uri = uri
        self.connection = Failing(uri)
        self.store = MilvusStore(lambda: self.connection, recipe)
        self.collections: TenantCollections = self.store.of(f"t-{token_hex(8)}")

    def listed(self, name: str, prefix: str = "") -> list[Passage]:
        with self.collections.lease(name) as snapshot:
            return [passage for page in snapshot.pages(7, prefix) for passage in page]


@pytest.fixture
async def held(milvus: MilvusLite) -> AsyncIterator[Held]:
    held = Held(milvus.uri, MilvusIndexing(None))
    await held.store.start()
    yield held
    await held.store.stop()


async def test_passages_are_given_by_id(held: Held) -> None:
    await held.collections.ingest("c", PLAIN, create=True)
    with held.collections.lease("c") as snapshot:
        assert snapshot.passages_of([PLAIN[1].id, "nobody"]) == [PLAIN[1]]


async def test_what_is_ingested_is_listed_and_repeats_change_nothing(held: Held) -> None:
    made = await held.collections.ingest("c", [*PLAIN, *ODD], create=True)
    assert (made.added, made.replaced, made.unchanged, made.collection.num_passages) == (23, 0, 0, 23)
    assert held.listed("c") == sorted([*PLAIN, *ODD], key=lambda passage: passage.id)
    for prefix in ("a", "a'", PLAIN[0].id[:1], PLAIN[-1].id, "~"):
        assert held.listed("c", prefix) == [one for one in held.listed("c") if one.id.startswith(prefix)]
    again = await held.collections.ingest("c", ODD, create=False)
    assert (again.unchanged, again.collection.version) == (3, made.collection.version)
    more = await held.collections.ingest(
        "c", [Passage("b", "", "other"), Passage("d", "", "x")], create=False
    )
    assert (more.added, more.replaced, more.collection.num_passages) == (1, 1, 24)
    assert more.collection.version > made.collection.version
    gone = await held.collections.delete_passages("c", ["a'\"\\;--", "b", "nobody"])
    assert (gone.deleted, gone.missing, gone.collection.num_passages) == (2, 1, 22)
    assert len(held.listed("c")) == 22
    size = sum(len(p.id.encode()) + len(p.title.encode()) + len(p.text.encode()) for p in held.listed("c"))
    assert gone.collection.size_bytes == size


async def test_a_change_that_is_cut_off_is_said_and_the_same_ends_it(held: Held) -> None:
    many = [Passage(f"q{number:04}", "", f"text {number}") for number in range(1200)]  # three requests
    await held.collections.ingest("c", PLAIN, create=True)
    held.connection.fails_at = 1
    with pytest.raises(Unavailable, match="send it again") as refused:
        await held.collections.ingest("c", many, create=False)
    assert refused.value.reason == "CHANGE_CUT_OFF"
    await held.store.refresh()
    assert "was cut off" in held.collections.describe("c").warning
    with pytest.raises(Unavailable, match="changed during the read"):
        held.listed("c")
    held.connection.fails_at = None
    ended = await held.collections.ingest("c", many, create=False)
    assert (ended.collection.num_passages, ended.collection.warning) == (1220, "")
    assert len(held.listed("c")) == 1220


async def test_of_a_new_collection_there_is_all_or_nothing(held: Held) -> None:
    held.connection.fails_at = 1
    many = [Passage(f"q{number:04}", "", f"text {number}") for number in range(600)]
    with pytest.raises(Unavailable):
        await held.collections.ingest("new", many, create=True)
    await held.store.refresh()
    assert held.collections.list() == []


async def test_a_new_collection_whose_record_may_be_written_stays(held: Held) -> None:
    held.connection.answers = False
    with pytest.raises(DeadlineExceeded):
        await held.collections.ingest("new", PLAIN, create=True)
    held.connection.answers = True
    await held.store.refresh()
    assert held.collections.describe("new").num_passages == 20
    assert held.listed("new") == PLAIN
    assert (await held.collections.ingest("new", PLAIN, create=True)).unchanged == 20


async def test_names_of_no_collection_are_not_kept(held: Held) -> None:
    for number in range(5):
        for write in (
            held.collections.drop(f"c{number}"),
            held.collections.delete_passages(f"c{number}", ["a"]),
            held.collections.ingest(f"c{number}", PLAIN, create=False),
        ):
            with pytest.raises(NotFound):
                await write
    assert len(held.store._turns) == 0


async def test_writes_of_one_collection_take_turns(held: Held) -> None:
    await held.collections.create("c", "", Lexical())
    await asyncio.gather(*(held.collections.ingest("c", [one], create=False) for one in PLAIN))
    assert held.collections.describe("c").num_passages == 20
    assert held.collections.describe("c").version.endswith("-00000021")


async def test_quotas_hold(milvus: MilvusLite) -> None:
    quotas = Quotas(Limit(5, "C"), Limit(0, ""), Limit(8, "T"), Limit(0, ""))
    held = Held(milvus.uri, MilvusIndexing(None, quotas=quotas))
    await held.store.start()
    with pytest.raises(MeshError, match="would hold 6 passages and may hold 5"):
        await held.collections.ingest("a", PLAIN[:6], create=True)
    await held.collections.ingest("a", PLAIN[:5], create=True)
    with pytest.raises(MeshError, match="the tenant would hold 10 passages and may hold 8"):
        await held.collections.ingest("b", PLAIN[:5], create=True)
    await held.store.stop()


async def test_collections_that_are_made_at_once_or_for_nobody_count(milvus: MilvusLite) -> None:
    held = Held(milvus.uri, MilvusIndexing(None, quotas=Quotas(tenant_collections=Limit(2, "N"))))
    await held.store.start()

    def create(name: str) -> Coroutine[Any, Any, CollectionInfo]:
        return held.collections.create(name, "", Lexical())

    made = await asyncio.gather(*map(create, "abcdef"), return_exceptions=True)
    refused = [one.reason for one in made if isinstance(one, MeshError)]
    assert refused == ["QUOTA_EXCEEDED"] * 4
    for one in held.collections.list():
        await held.collections.drop(one.name)
    leaving = [asyncio.create_task(create(name)) for name in "gh"]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    with pytest.raises(MeshError, match="has 2 collections and may have 2"):
        await create("i")
    await held.store.stop()  # which waits for both
    assert [one.name for one in held.collections.list()] == ["g", "h"]


class Words:
    """A sparse encoder: each of a few words is a term, and counts as often as it is there."""

    name, fingerprint, vocabulary, device = "words", "w1", 3, "cpu"

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, texts))

    def encode_query(self, text: str) -> SparseVector:
        counts = np.array([text.split().count(word) for word in ("oil", "lamp", "tube")])
        terms = np.flatnonzero(counts)
        return SparseVector(terms, counts[terms].astype(np.float32))

    def encode_passages(self, texts: Sequence[str], progress: object) -> list[SparseVector]:
        return [self.encode_query(text) for text in texts]


async def test_sparse_weights_and_filters_that_try_to_escape(milvus: MilvusLite) -> None:
    held = Held(milvus.uri, MilvusIndexing(None, Words()))
    await held.store.start()
    passages = [
        Passage("a", "", "oil oil", {"g": "x"}),
        Passage("b", "", "oil lamp", {"g": "y"}),
        Passage("c", "", "none of them", {"g": 'x" or exists attributes["g"] or "" == "'}),
        Passage("d", "", "oil lamp", {"g": "y"}),
    ]
    await held.collections.ingest("c", passages, create=True)
    local = RetrieverCatalogue(RetrieverSettings(encoder="", hybrid="bm25"), analyzer, None).retrievers
    splade = over_milvus({**local, "splade": local["bm25"]}, None, Words(), version="v", cache=8)["splade"]

    def found(query: str, n: int, where: Filter | None = None) -> list[tuple[str, float]]:
        with held.collections.lease("c") as snapshot:
            scored = splade.search(snapshot, query, n, where)
            return [
                (passage.id, score)
                for passage, score in zip(
                    snapshot.passages(scored.rows.tolist()), scored.scores.tolist(), strict=True
                )
            ]

    assert found("oil lamp", 4) == [("a", 2.0), ("b", 2.0), ("d", 2.0), ("c", 0.0)]
    assert found("none", 2) == [("a", 0.0), ("b", 0.0)]
    for value in ('x" or exists attributes["g"] or "" == "', 'z" or "1" == "1', "x\\", '"]'):
        ids = [one for one, _ in found("oil", 4, Filter((Condition("g", AnyOf(frozenset({value}))),)))]
        assert ids == [p.id for p in passages if p.attributes["g"] == value]
    assert [one for one, _ in found("oil", 9, Filter((Condition("g", TextRange("y", None)),)))] == ["b", "d"]
    with pytest.raises(InvalidField, match="no passage of collection 'c' has an attribute"):
        found("oil", 4, Filter((Condition('g"] == "x" or attributes["g', AnyOf(frozenset({"x"}))),)))
    await held.store.stop()


async def test_vectors_of_another_model_are_not_mixed(milvus: MilvusLite, held: Held) -> None:
    await held.collections.ingest("c", PLAIN, create=True)
    other = Held(milvus.uri, MilvusIndexing(None, Words()))
    await other.store.start()
    there = other.store.of(held.collections.tenant)
    with pytest.raises(
        FailedPrecondition, match="has weights of 'no model' and this server makes"
    ) as refused:
        await there.ingest("c", [Passage("x", "", "y")], create=False)
    assert refused.value.reason == "OTHER_ENCODER"
    await other.store.stop()


def test_a_snapshot_of_nothing_says_so(milvus: MilvusLite) -> None:
    connection = Connection(milvus.uri)
    Registry(connection).open()
    with pytest.raises(MeshError, match="there is no collection 'nowhere'"):
        len(MilvusSnapshot(connection, Registry(connection), ("default", "nowhere")))
    connection.close()


class _Directions:
    """Vectors without a model: a direction for each number in a text, of length 1."""

    name = fingerprint = "directions"
    dimension = 8
    device, precision = "cpu", "fp32"
    max_tokens = 256

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, texts))

    def encode_query(self, text: str) -> np.ndarray:
        angles = np.arange(1, 5) * sum(int(word) for word in text.split() if word.isdigit())
        return np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32) / 2

    def encode_passages(self, texts: Sequence[str], progress: object) -> np.ndarray:
        return np.array([self.encode_query(text) for text in texts], dtype=np.float32)


@pytest.mark.parametrize("kind", ["FLAT", "HNSW", "AUTOINDEX"])
async def test_dense_indexes_by_kind_find_the_same(milvus: MilvusLite, kind: DenseKind) -> None:
    encoder = _Directions()
    held = Held(milvus.uri, MilvusIndexing(encoder, None, kind))
    await held.store.start()
    retrievers = over_milvus(
        RetrieverCatalogue(RetrieverSettings(), analyzer, encoder).retrievers,
        encoder,
        None,
        version=held.store.version,
        cache=10,
    )
    await held.collections.ingest("c", PLAIN, create=True)
    exact = np.array([encoder.encode_query(p.text) @ encoder.encode_query("number 40") for p in PLAIN])
    with held.collections.lease("c") as snapshot:
        found = retrievers["dense"].search(snapshot, "number 40", 5)
        ids = [passage.id for passage in snapshot.passages(found.rows.tolist())]
        assert isinstance(snapshot, MilvusSnapshot)
        described = MilvusClient(milvus.uri).describe_index(snapshot.record.place, DENSE)
    assert ids == [PLAIN[row].id for row in np.argsort(-exact, kind="stable")[:5]]
    assert found.scores.tolist() == pytest.approx(np.sort(exact)[::-1][:5].tolist(), abs=1e-6)
    assert described["index_type"] == kind
    await held.store.stop()


async def test_a_token_is_read_from_its_file(milvus: MilvusLite, tmp_path: Path) -> None:
    # Milvus Lite takes any: that the right one is sent, and a wrong one refused, only a cluster can show.
    token = tmp_path / "token"
    token.write_text("root:Milvus\n")
    settings = RetrieverSettings(
        store="milvus", milvus_uri=milvus.uri, milvus_token_file=token, encoder="", milvus_timeout_s=5
    )
    store, _ = opened(settings, None, None, Quotas())
    await store.start()
    mine = store.of(f"t-{token_hex(8)}")
    assert (await mine.ingest("c", PLAIN, create=True)).added == 20
    await store.stop()
    token.unlink()
    with pytest.raises(CannotStart, match="EVENMESH_RETRIEVER_MILVUS_TOKEN_FILE"):
        await opened(settings, None, None, Quotas())[0].start()


class _Away(_Directions):
    """Vectors of a model that is away, or does not finish until it is let go on."""

    def __init__(self) -> None:
        self.go_on = Event()
        self.at_work = Semaphore(0)
        self.is_away = False

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> np.ndarray:
        if self.is_away:
            raise Unavailable("MODEL_AWAY", "the model server does not answer")
        self.at_work.release()
        while not self.go_on.wait(0.01):
            progress(0)
        return super().encode_passages(texts, progress)


@pytest.fixture
async def slow(milvus: MilvusLite) -> AsyncIterator[tuple[Held, _Away]]:
    encoder = _Away()
    held = Held(milvus.uri, MilvusIndexing(encoder))
    await held.store.start()
    yield held, encoder
    encoder.go_on.set()
    await held.store.stop()
    callers.enter(callers.ANYONE)


async def test_a_model_that_is_away_leaves_no_collection_behind(slow: tuple[Held, _Away]) -> None:
    held, encoder = slow
    encoder.is_away = True
    client = MilvusClient(held.uri)
    before = client.list_collections()
    with pytest.raises(Unavailable, match="does not answer"):
        await held.collections.ingest("new", PLAIN, create=True)
    assert sorted(client.list_collections()) == sorted(before)
    client.close()


async def test_vectors_of_one_tenant_keep_no_other_waiting(slow: tuple[Held, _Away]) -> None:
    held, encoder = slow
    callers.enter(Caller("busy", "busy", frozenset()))
    mine = held.store.of("busy-" + token_hex(8))
    long = [asyncio.create_task(mine.ingest(f"c{number}", PLAIN, create=True)) for number in range(3)]
    for _ in range(2):
        await asyncio.to_thread(encoder.at_work.acquire)
    callers.enter(Caller("other", "other", frozenset()))
    await held.store.refresh()
    await held.collections.create("c", "", Lexical())
    assert not any(one.done() for one in long)
    encoder.go_on.set()
    assert [(await one).added for one in long] == [20] * 3


async def test_stopping_abandons_vectors_that_are_being_made(slow: tuple[Held, _Away]) -> None:
    held, encoder = slow
    await held.collections.create("c", "", Lexical())
    long = asyncio.create_task(held.collections.ingest("c", PLAIN, create=False))
    await asyncio.to_thread(encoder.at_work.acquire)
    await held.store.stop()
    with pytest.raises(Unavailable, match="shutting down; nothing was kept"):
        await long
