"""What is kept in memory of segments is bounded for all collections together, and by tenant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from evenmesh_kit.compute.tenant_cache import TenantCache
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_retriever.backends.segments.files import segment
from evenmesh_retriever.backends.segments.files.terms import TermTable
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import Passage

BOUND = 200_000


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
