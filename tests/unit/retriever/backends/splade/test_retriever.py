"""SPLADE as a retriever of the server: over live collections, and over passages sent along."""

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.impacts import ImpactCache
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.backends.splade.sparse_encoder import SpladeEncoder
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.ports import CannotStart, Snapshot
from evenmesh_retriever.settings import RetrieverSettings
from evenmesh_retriever.steps import finish

PASSAGES = [
    Passage("chain", "", "oil the chain"),
    Passage("lamp", "", "a red lamp at night"),
    Passage("tube", "", "mend the tube"),
    Passage("twin", "", "oil the chain"),
]


class Server:
    """A catalogue with ``splade`` and a store it prepares collections for."""

    def __init__(self, home: Path, encoder: SpladeEncoder) -> None:
        settings = RetrieverSettings(
            encoder="", home=home, splade_model="tiny", hybrid="bm25-lucene+splade", hybrid_weights="1,2"
        )
        self.catalogue = RetrieverCatalogue(settings, cache(analyzer), None, encoder)
        self.splade = self.catalogue.retrievers["splade"]
        recipe = SegmentIndexing(cache(analyzer), None)
        self.all = SegmentStore(home / "collections", recipe, self.catalogue.prepare)
        self.store = self.all.of(DEFAULT_TENANT)

    def ids(self, snapshot: Snapshot, query: str, n: int, retriever: str = "splade") -> list[str]:
        rows = self.catalogue.retrievers[retriever].search(snapshot, query, n).rows
        return [passage.id for passage in snapshot.passages(rows.tolist())]


@pytest.fixture
async def server(tmp_path: Path, encoder: SpladeEncoder) -> AsyncIterator[Server]:
    server = Server(tmp_path, encoder)
    await server.all.start()
    yield server
    await server.all.stop()


def scores_of(encoder: SpladeEncoder, query: str, passages: list[Passage]) -> dict[str, float]:
    """Inner products one by one."""
    asked = encoder.encode_query(query)
    scores = {}
    for passage in passages:
        vector = encoder.encode_passages([passage.content], lambda _: None)[0]
        weights = dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True))
        pairs = zip(asked.terms.tolist(), asked.weights.tolist(), strict=True)
        scores[passage.id] = sum(weight * weights.get(term, 0.0) for term, weight in pairs)
    return scores


async def test_a_live_collection_is_ranked_by_inner_products(server: Server, encoder: SpladeEncoder) -> None:
    await server.store.ingest("c", [PASSAGES[0], PASSAGES[3]], create=True)
    await server.store.ingest("c", PASSAGES[1:3], create=False)
    await server.store.delete_passages("c", ["tube"])
    left = [passage for passage in PASSAGES if passage.id != "tube"]
    expected = scores_of(encoder, "red chain", left)
    with server.store.lease("c") as snapshot:
        found = server.splade.search(snapshot, "red chain", 10)
        ids = [passage.id for passage in snapshot.passages(found.rows.tolist())]
        fused = server.ids(snapshot, "red chain", 10, "hybrid")
    assert ids == sorted(expected, key=lambda one: (-round(expected[one], 4), one))
    assert ids.index("chain") < ids.index("twin")  # equal texts, by ascending id
    np.testing.assert_allclose(found.scores, [expected[one] for one in ids], rtol=1e-4)
    assert set(fused) == set(ids)


async def test_candidates_are_ranked_as_a_collection_of_them(server: Server, encoder: SpladeEncoder) -> None:
    ranked = finish(server.splade.rank(PASSAGES, "the lamp"))
    expected = scores_of(encoder, "the lamp", PASSAGES)
    np.testing.assert_allclose(
        ranked.scores, [expected[PASSAGES[row].id] for row in ranked.rows], rtol=1e-4, atol=1e-6
    )
    assert sorted(ranked.rows.tolist()) == [0, 1, 2, 3]


async def test_a_restart_encodes_nothing_anew(
    server: Server, encoder: SpladeEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.store.ingest("c", PASSAGES, create=True)
    with server.store.lease("c") as snapshot:
        before = server.ids(snapshot, "red chain", 4)
    await server.all.stop()

    def refuse(*_: object) -> None:
        raise AssertionError("encoded anew")

    again = Server(tmp_path, encoder)
    monkeypatch.setattr(encoder, "encode_passages", refuse)
    await again.all.start()
    with again.store.lease("c") as snapshot:
        assert again.ids(snapshot, "red chain", 4) == before
    await again.all.stop()
    monkeypatch.undo()
    # What cannot be read is made anew.
    for path in (tmp_path / "splade").glob("*/*/*/impacts.rows.npy"):
        path.write_bytes(b"")
    third = Server(tmp_path, encoder)
    await third.all.start()
    with third.store.lease("c") as snapshot:
        assert third.ids(snapshot, "red chain", 4) == before
    await third.all.stop()


def test_what_was_not_used_for_a_month_goes(tmp_path: Path) -> None:
    import os

    for name in ("old", "new"):
        (tmp_path / "model" / "tenant" / name).mkdir(parents=True)
    os.utime(tmp_path / "model" / "tenant" / "old", (0, 0))
    ImpactCache(tmp_path)
    assert [path.name for path in (tmp_path / "model" / "tenant").iterdir()] == ["new"]


def test_weights_that_tenants_shared_go(tmp_path: Path) -> None:
    shared = tmp_path / "model" / "0123456789ab"
    shared.mkdir(parents=True)
    for name in ("rows", "bounds"):
        (shared / f"impacts.{name}.npy").write_bytes(b"x")
    ImpactCache(tmp_path)
    assert not shared.exists()


def test_it_is_there_only_with_a_model() -> None:
    without = RetrieverCatalogue(RetrieverSettings(encoder=""), cache(analyzer), None)
    assert "splade" not in without.retrievers
    assert "hybrid" not in without.retrievers
    settings = RetrieverSettings(encoder="", splade_model="tiny", hybrid="bm25+splade")
    with pytest.raises(CannotStart, match=r"^EVENMESH_RETRIEVER_HYBRID='bm25\+splade': there is no 'splade'"):
        RetrieverCatalogue(settings, cache(analyzer), None)
