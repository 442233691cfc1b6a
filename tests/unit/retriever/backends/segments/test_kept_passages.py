"""What is kept in memory of segments is bounded for all collections together, and by tenant."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import ref

import pytest

from evenmesh_kit.compute.tenant_cache import TenantCache
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_retriever.backends.segments.files import segment
from evenmesh_retriever.backends.segments.files.records import Records
from evenmesh_retriever.backends.segments.files.terms import TermTable
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import AnyOf, Condition, Filter, NumberRange, Passage, TextRange

BOUND = 200_000
Allowed = AnyOf | TextRange | NumberRange


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[TenantCache[Passage]]:
    """A smaller memory of passages."""
    small: TenantCache[Passage] = TenantCache(BOUND, share=1.0)
    monkeypatch.setattr(segment, "_passages", small)
    yield small
    callers.enter(callers.ANYONE)


@contextmanager
def called_by(tenant: str) -> Iterator[None]:
    """Act for a tenant within a block."""
    callers.enter(Caller(tenant, tenant, frozenset({Role.ASK})))
    yield
    callers.enter(callers.ANYONE)


async def test_passages_of_many_collections_share_a_bound(open_store, kept: TenantCache[Passage]) -> None:
    store = await open_store()

    async def filled(tenant: str, name: str, number: int) -> list[str]:
        ids = [f"{name}{place}" for place in range(number)]
        passages = [Passage(one, "", f"{one} " + "ä" * 10_000) for one in ids]
        await store.of(tenant).ingest(name, passages, create=True)
        return ids

    def read(tenant: str, name: str, ids: list[str]) -> None:
        with called_by(tenant), store.of(tenant).lease(name) as snapshot:
            assert isinstance(snapshot, SegmentSnapshot)
            assert [one.id for one in snapshot.passages_of(ids)] == ids

    read("ada", "few", await filled("ada", "few", 2))
    few = kept.held("ada")
    assert few > 20_000
    for name in ("a", "b", "c"):
        read("mallory", name, await filled("mallory", name, 10))
    assert kept.size <= BOUND
    assert kept.held("ada") == few, "who reads little keeps it"


def test_long_terms_are_not_kept() -> None:
    table = TermTable(dict(TermTable.arrays([b"oil", b"x" * 100])))
    assert (table["oil"], table["x" * 100], table.get("y" * 8000)) == (0, 1, None)
    assert table._find.cache_info().currsize == 1


async def test_what_a_filter_names_is_not_kept_with_what_it_allows(open_store) -> None:
    store = await open_store()
    collections = store.of("ada")
    passages = [Passage(str(year), "", "word", {"year": str(year)}) for year in range(10)]
    await collections.ingest("c", passages, create=True)
    with collections.lease("c") as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        values = frozenset(map(str, range(5, 1000)))
        where = Filter((Condition("year", AnyOf(values)),))
        masks = snapshot.allowed(where)
        assert [mask.tolist() for mask in masks] == [[False] * 5 + [True] * 5]
        assert snapshot.allowed(Filter((Condition("year", AnyOf(frozenset(values))),))) is masks
        left = ref(values)
        del values, where
        gc.collect()
        assert left() is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AnyOf(frozenset(["1", "2"])), AnyOf(frozenset(["12"]))),
        (AnyOf(frozenset(["1:2"])), AnyOf(frozenset(["1", "2"]))),
        (AnyOf(frozenset(["1"])), TextRange("1", "1")),
        (AnyOf(frozenset([repr(TextRange(None, None))])), TextRange(None, None)),
        (TextRange("1", None), TextRange(None, "1")),
        (TextRange("1", "2"), NumberRange(1.0, 2.0)),
    ],
)
async def test_masks_of_different_filters_are_kept_apart(open_store, one: Allowed, other: Allowed) -> None:
    store = await open_store()
    await store.of("ada").ingest("c", [Passage("a", "", "word", {"a": "1", "b": "1"})], create=True)
    with store.of("ada").lease("c") as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        filters = [
            *(Filter((Condition("a", allowed),)) for allowed in (one, other)),
            *(Filter((Condition("a", allowed), Condition("b", allowed))) for allowed in (one, other)),
            Filter((Condition("a", one), Condition("b", other))),
            Filter((Condition("a", other), Condition("b", one))),
        ]
        masks = [snapshot.allowed(where) for where in filters]
        assert len({id(mask) for mask in masks}) == len(filters)


async def test_a_page_reads_no_more_ids_than_it_needs(open_store, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(max_segment_passages=50)
    for number in range(3):
        passages = [Passage(f"{place:02}{number}", "", "word") for place in range(50)]
        await store.of("ada").ingest("c", passages, create=True)
    read: list[int] = []
    id_of = Records.id

    def reading(self: Records, row: int) -> bytes:
        read.append(row)
        return id_of(self, row)

    monkeypatch.setattr(Records, "id", reading)
    with store.of("ada").lease("c") as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        assert len(snapshot.views) == 3
        pages = snapshot.pages(4)
        assert [one.id for one in next(pages)] == ["000", "001", "002", "010"]
        assert len(read) < 10
        assert [one.id for page in pages for one in page][-1] == "492"
