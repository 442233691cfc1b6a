"""A version that nobody reads any more is let go of, with all that retrievers made of it."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path
from typing import Literal
from weakref import ref

import pytest

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.settings import RetrieverSettings
from tests.unit.retriever.backends.segments.living import CountingEncoder
from tests.unit.retriever.backends.segments.test_impacts import LetterEncoder


@pytest.mark.parametrize("engine", ["csr", "rank_bm25"])
async def test_of_many_writes_only_the_last_version_stays_open(
    tmp_path: Path, engine: Literal["csr", "rank_bm25"]
) -> None:
    settings = RetrieverSettings(home=tmp_path, encoder="", bm25_engine=engine)
    encoder = CountingEncoder()
    analyzers = cache(analyzer)
    catalogue = RetrieverCatalogue(settings, analyzers, encoder, LetterEncoder())  # type: ignore[arg-type]
    prepared: list[ref[SegmentSnapshot]] = []

    def prepare(snapshot: SegmentSnapshot) -> None:
        catalogue.prepare(snapshot)
        prepared.append(ref(snapshot))

    recipe = SegmentIndexing(analyzers, encoder, carry=catalogue.carry, ahead=catalogue.ahead)
    store = SegmentStore(tmp_path / "collections", recipe, prepare)
    await store.start()
    try:
        collections = store.of(DEFAULT_TENANT)
        for turn in range(12):
            await collections.ingest("c", [Passage(f"p{turn % 5}", "", f"river {turn}")], create=True)
            with collections.lease("c") as snapshot:
                assert isinstance(snapshot, SegmentSnapshot)
                for name in ("bm25", "bm25-lucene", "dense", "splade"):
                    assert len(catalogue.retrievers[name].search(snapshot, "river", 3).rows)
        await store.settled()
        del snapshot
        gc.collect()
        assert len(prepared) > 12
        assert sum(one() is not None for one in prepared) == 1
    finally:
        await store.stop()
