"""Vectors that are made in the background."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event, Semaphore

import numpy as np
import pytest

from evenmesh.wire import deadline
from evenmesh.wire.errors import Unavailable
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.backends.segments.building import embedding
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import Passage, VectorArray
from tests.unit.retriever.backends.segments.living import CountingEncoder

PASSAGES = [Passage(f"p{number}", "", "aeiou"[number % 5] * number + "x") for number in range(10)]


class Waiting(CountingEncoder):
    """Waits after so many texts."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.encoded: list[str] = []
        self.waits, self.may_go_on = Event(), Event()

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        if len(self.encoded) >= self.after:
            self.waits.set()
            assert self.may_go_on.wait(60)
        progress(0)
        self.encoded += texts
        return super().encode_passages(list(texts), progress)


async def test_a_restart_goes_on_where_it_stopped(open_store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_CHUNK", 2)
    first = Waiting(after=6)
    store = await open_store(encoder=first, embed_at_once=0)
    collections = store.of(DEFAULT_TENANT)
    made = await collections.ingest("c", PASSAGES, create=True)
    assert made.collection.embedded == 0
    await asyncio.to_thread(first.waits.wait, 60)
    assert collections.describe("c").embedded == 6 / 10
    # It is written meanwhile: what is gone needs no vector, and what is new gets one.
    await collections.delete_passages("c", ["p9", "p0"])
    stop = asyncio.create_task(store.stop())
    await asyncio.sleep(0)
    first.may_go_on.set()
    await stop
    assert len(first.encoded) == 6

    second = Waiting(after=1000)
    store = await open_store(encoder=second, embed_at_once=0)
    collections = store.of(DEFAULT_TENANT)
    await collections.ingest("c", [Passage("q", "", "new text")], create=False)
    await store.settled()
    assert sorted(second.encoded) == sorted(
        [*(passage.content for passage in PASSAGES if passage.id in ("p6", "p7", "p8")), "new text"]
    )
    with collections.lease("c") as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        assert snapshot.info.embedded == 1
        for view in snapshot.views:
            assert view.dense is not None
            for row in view.rows.tolist():
                expected = second.encode_query(view.segment.passage(row).content)
                np.testing.assert_array_equal(view.dense.vectors[row], expected)


async def test_vectors_are_made_for_longer_than_the_writer_waits(open_store) -> None:
    class Elsewhere(CountingEncoder):
        """Is away at first, and has as long as the work that it is asked for."""

        def __init__(self) -> None:
            self.left_s: list[float] = []

        def encode_passages(self, texts: list[str], progress: Callable[[int], None]) -> VectorArray:
            self.left_s.append(deadline.current().remaining())
            if len(self.left_s) == 1:
                raise Unavailable("ENCODER_UNAVAILABLE", "the encoder does not answer")
            return super().encode_passages(texts, progress)

    encoder = Elsewhere()
    store = await open_store(encoder=encoder, embed_at_once=0, retry_s=0.01)
    collections = store.of(DEFAULT_TENANT)
    deadline.enter(deadline.Deadline.after(3600))
    await collections.ingest("c", PASSAGES, create=True)
    while collections.describe("c").embedded < 1:
        await asyncio.sleep(0.01)
    assert encoder.left_s == [math.inf, math.inf]


async def test_another_encoder_makes_vectors_anew(open_store) -> None:
    store = await open_store(encoder=CountingEncoder())
    made = await store.of(DEFAULT_TENANT).ingest("c", PASSAGES, create=True)
    assert (made.collection.encoder, made.collection.embedded) == ("letters", 1)
    assert (made.collection.dense_kind, made.collection.dense_recall) == ("flat", 1)
    await store.stop()

    class Other(CountingEncoder):
        """Another one."""

        name = fingerprint = "others"

    store = await open_store(encoder=Other())
    collections = store.of(DEFAULT_TENANT)
    await store.settled()
    info = collections.describe("c")
    assert (info.encoder, info.embedded) == ("others", 1)
    await collections.delete_passages("c", ["p1"])  # the version before goes, and its vectors with it
    with collections.lease("c") as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        (view,) = snapshot.views
        assert view.dense is not None
        assert view.dense.manifest.encoder.fingerprint == "others"
        assert [path.name for path in view.dense.folder.parent.glob("dense-*")] == [view.dense.folder.name]


async def test_an_encoder_that_fails_keeps_nothing_of_an_ingest(open_store) -> None:
    class Broken(CountingEncoder):
        """Cannot."""

        def encode_passages(self, texts: list[str], progress: Callable[[int], None]) -> VectorArray:
            raise RuntimeError("out of memory")

    store = await open_store(encoder=Broken())
    collections = store.of(DEFAULT_TENANT)
    with pytest.raises(RuntimeError):
        await collections.ingest("c", PASSAGES, create=True)
    assert collections.list() == []


async def test_an_index_that_cannot_be_read_is_named_and_the_version_before_served(
    open_store, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(encoder=CountingEncoder())
    collections = store.of(DEFAULT_TENANT)
    first = await collections.ingest("c", PASSAGES[:5], create=True)
    await collections.ingest("c", PASSAGES[5:], create=True)
    with collections.lease("c") as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        newest = snapshot.views[-1].dense
        assert newest is not None
    await store.stop()
    path = newest.folder / "dense.json"
    path.write_text(path.read_text().replace("flat", "tree"))
    # Nothing is read to be checked before it serves, but an index is opened.
    store = await open_store(encoder=CountingEncoder(), verify_bytes=0)
    described = store.of(DEFAULT_TENANT).describe("c")
    assert described.version == first.collection.version
    assert "dense.json is not the manifest of a dense index" in described.warning
    assert "dense.json" in caplog.text


class OneByOne(CountingEncoder):
    """Encodes a step for each permit; knows whose steps have ended, by the first word of their texts."""

    def __init__(self) -> None:
        self.permits = Semaphore(0)
        self.ended: list[str] = []

    async def step(self) -> None:
        before = len(self.ended)
        self.permits.release()
        while len(self.ended) == before:
            await asyncio.sleep(0.01)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        assert self.permits.acquire(timeout=60)
        vectors = super().encode_passages(list(texts), progress)
        self.ended.append(texts[0].split()[0])
        return vectors


@pytest.mark.parametrize("embed_at_once", [5_000, 0], ids=["before the reply", "after the reply"])
async def test_tenants_that_ingest_much_leave_others_their_turn(open_store, embed_at_once: int) -> None:
    encoder = OneByOne()
    store = await open_store(encoder=encoder, embed_at_once=embed_at_once, write_threads=1)

    async def ingest(tenant: str, name: str, number: int) -> None:
        callers.enter(replace(callers.ANYONE, tenant=tenant))
        passages = [Passage(f"p{at}", "", f"{tenant} {name} {at}") for at in range(number)]
        await store.of(tenant).ingest(name, passages, create=True)

    # Two tenants hold all threads, each with two collections of more than ten steps.
    loud = [asyncio.create_task(ingest(tenant, name, 1500)) for tenant in ("a", "b") for name in "cd"]
    async with asyncio.timeout(60):
        for _ in range(8):
            await encoder.step()
        quiet = asyncio.create_task(ingest("quiet", "c", 1))
        if not embed_at_once:
            await quiet
        while "quiet" not in encoder.ended:
            await encoder.step()
    assert encoder.ended.index("quiet") < 30  # of about 50, or 100
    for _ in range(200):
        encoder.permits.release()
    await asyncio.gather(*loud, quiet)
    await store.settled()
    assert 6000 / 128 <= len(encoder.ended) - 1 <= 6000 / 64 + 4
