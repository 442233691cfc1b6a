"""Learned sparse weights over segments: made once for each passage, whatever becomes of its segment."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from evenmesh.wire.errors import MeshError, NotFound
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.impacts import ImpactCache
from evenmesh_retriever.backends.segments.quotas import Limit, Quotas
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import Options, SegmentStore
from evenmesh_retriever.backends.splade.postings import SparseVector
from evenmesh_retriever.domain import Passage, Scored


class LetterEncoder:
    """Weights without a model: how often each letter is in a text."""

    name = fingerprint = "letters"
    vocabulary = 26
    device = "cpu"
    max_tokens = 256

    def __init__(self) -> None:
        self.encoded = 0

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, texts))

    def encode_query(self, text: str) -> SparseVector:
        counts = np.bincount([ord(one) - 97 for one in text if "a" <= one <= "z"], minlength=26)
        terms = np.flatnonzero(counts)
        return SparseVector(terms, counts[terms].astype(np.float32))

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> list[SparseVector]:
        self.encoded += len(texts)
        return [self.encode_query(text) for text in texts]


async def test_merging_takes_weights_over(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    impacts = ImpactCache(tmp_path / "splade")

    def prepare(snapshot: SegmentSnapshot) -> None:
        impacts.index(snapshot, encoder)

    recipe = SegmentIndexing(cache(analyzer), None, carry=impacts.carry)
    store = SegmentStore(tmp_path / "collections", recipe, prepare)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    texts = ["fox", "dog", "xylophone", "oxen", "moose", "lynx", "ox", "zebra"]
    for number, text in enumerate(texts):
        await collections.ingest("c", [Passage(f"p{number}", "", text)], create=True)
    await collections.delete_passages("c", ["p1"])
    await store.settled()
    assert collections.describe("c").num_segments < 4
    assert encoder.encoded == len(texts)  # each once, though they have been merged since

    def ranking(name: str) -> tuple[list[str], list[float]]:
        with collections.lease(name) as snapshot:
            index = impacts.index(snapshot, encoder)
            assert index is not None
            found: Scored = index.search(encoder.encode_query("fox"), 10)
            return [p.id for p in snapshot.passages(found.rows.tolist())], found.scores.tolist()

    await collections.ingest(
        "fresh", [Passage(f"p{n}", "", text) for n, text in enumerate(texts) if n != 1], create=True
    )
    ids, scores = ranking("c")
    assert (ids, scores) == ranking("fresh")
    # f, o and x are each in fox once; xylophone has an x and two o.
    assert (ids[:2], scores[:2]) == (["p0", "p2"], [1 + 1 + 1, 1 + 2])
    await store.stop()


async def test_a_replica_reads_weights_and_makes_none(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    impacts = ImpactCache(tmp_path / "splade")
    replica = ImpactCache(tmp_path / "splade", read_only=True)
    with_weights = True

    def prepare(snapshot: SegmentSnapshot) -> None:
        if with_weights:
            impacts.index(snapshot, encoder)

    store = SegmentStore(tmp_path / "collections", SegmentIndexing(cache(analyzer), None), prepare)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    await collections.ingest("c", [Passage("a", "", "fox"), Passage("b", "", "dog")], create=True)
    encoded = encoder.encoded
    with collections.lease("c") as snapshot:
        found = [one.index(snapshot, encoder) for one in (impacts, replica)]
        assert found[0] is not None
        assert found[1] is not None
        scored = [one.search(encoder.encode_query("fox"), 2) for one in found if one is not None]
        assert scored[0].scores.tolist() == scored[1].scores.tolist()
    with_weights = False
    await collections.ingest("c", [Passage("z", "", "ox")], create=False)
    before = sorted(tmp_path.joinpath("splade").rglob("*"))
    with collections.lease("c") as snapshot:
        assert replica.index(snapshot, encoder) is None
    assert sorted(tmp_path.joinpath("splade").rglob("*")) == before
    assert encoder.encoded == encoded
    await store.stop()


async def test_encoding_keeps_no_other_writer_waiting(tmp_path: Path) -> None:
    class Halting(LetterEncoder):
        """Stands still at a text until it may go on."""

        def __init__(self) -> None:
            super().__init__()
            self.reached, self.go_on = Event(), Event()

        def encode_passages(
            self, texts: Sequence[str], progress: Callable[[int], None]
        ) -> list[SparseVector]:
            if "slow" in texts:
                self.reached.set()
                assert self.go_on.wait(30)
            return super().encode_passages(texts, progress)

    encoder = Halting()
    impacts = ImpactCache(tmp_path / "splade")
    recipe = SegmentIndexing(
        cache(analyzer), None, carry=impacts.carry, ahead=partial(impacts.ahead, encoder)
    )
    store = SegmentStore(
        tmp_path / "collections", recipe, lambda snapshot: void(impacts.index(snapshot, encoder))
    )
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    await collections.ingest("c", [Passage("a", "", "ox"), Passage("b", "", "cow")], create=True)
    slow = asyncio.create_task(
        collections.ingest("c", [Passage("a", "", "ox"), Passage("s", "", "slow")], create=False)
    )
    await asyncio.to_thread(encoder.reached.wait, 30)
    await collections.ingest("c", [Passage("d", "", "dog")], create=False)
    await collections.delete_passages("c", ["b"])
    assert collections.describe("c").num_passages == 2
    assert not slow.done()
    encoder.go_on.set()
    done = await slow
    assert (done.added, done.unchanged, done.collection.num_passages) == (1, 1, 3)
    # ox, cow, dog and slow, each once: what is unchanged is not encoded again.
    assert encoder.encoded == 4
    assert impacts._ahead == []
    await store.stop()


async def test_what_is_refused_is_not_encoded(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    impacts = ImpactCache(tmp_path / "splade")
    recipe = SegmentIndexing(
        cache(analyzer), None, carry=impacts.carry, ahead=partial(impacts.ahead, encoder)
    )
    store = SegmentStore(
        tmp_path / "collections",
        recipe,
        lambda snapshot: void(impacts.index(snapshot, encoder)),
        Options(quotas=Quotas(tenant_passages=Limit(3, "S_TP"))),
    )
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    await collections.ingest("c", [Passage(one, "", "ox") for one in "ab"], create=True)
    assert encoder.encoded == 2
    for name in ("c", "new"):
        with pytest.raises(MeshError, match="the tenant would hold 4 passages and may hold 3"):
            await collections.ingest(name, [Passage(one, "", "cow") for one in "xy"], create=True)
    with pytest.raises(NotFound):
        await collections.ingest("none", [Passage("x", "", "cow")], create=False)
    assert encoder.encoded == 2
    # What replaces others, and what is there already, adds nothing.
    again = [Passage("a", "", "ox"), Passage("b", "", "dog"), Passage("x", "", "cow")]
    assert (await collections.ingest("c", again, create=False)).added == 1
    assert encoder.encoded == 4
    await store.stop()


def void(_: object) -> None:
    """Takes what is not wanted."""


async def test_tenants_share_no_weights(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    impacts = ImpactCache(tmp_path / "splade")

    def prepare(snapshot: SegmentSnapshot) -> None:
        assert impacts.index(snapshot, encoder) is not None

    store = SegmentStore(
        tmp_path / "collections", SegmentIndexing(cache(analyzer), None, carry=impacts.carry), prepare
    )
    await store.start()
    passages = [Passage("secret", "", "what another tenant has")]
    await store.of("a").ingest("c", passages, create=True)
    once = encoder.encoded
    await store.of("a").ingest("same", passages, create=True)
    assert encoder.encoded == once  # known to the tenant
    await store.of("b").ingest("c", passages, create=True)
    assert encoder.encoded == 2 * once
    await store.stop()


def test_texts_that_a_tenant_had_encoded_ahead_serve_it_alone(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    impacts = ImpactCache(tmp_path / "splade")
    with impacts.ahead(encoder, "first") as make:
        make(["ox"])
        impacts._vectors(["ox"], encoder, "second")
        assert encoder.encoded == 2  # the other tenant's ox was encoded for it
        impacts._vectors(["ox"], encoder, "first")
        assert encoder.encoded == 2
