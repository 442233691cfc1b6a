"""Old versions go, and nothing that is served, rolled back to, or being loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.models import retention
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.manifest import Kind, Lineage, Manifest
from evenmesh_reranker.models.retention import LOADING, needed
from evenmesh_reranker.models.store import ModelStore, Pointer

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def prune(store: ModelStore, *, keep: int, in_memory: Sequence[str] = ()) -> list[str]:
    return asyncio.run(retention.prune(store, FilePromotions(store), keep=keep, in_memory=in_memory))


class Kept:
    """A store whose clock is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = NOON
        self.store = ModelStore(folder, clock=lambda: self.now)

    def write(self, agent: Agent | None = None, base: str = "") -> str:
        self.now += timedelta(seconds=1)
        kind = Kind.ADAPTER if base else Kind.FULL
        with self.store.write(Lineage(str(self.now), "", agent, kind, base)) as draft:
            (draft.folder / "weights").write_bytes(str(self.now).encode())
        return draft.version

    def serve(self, version: str, agent: Agent | None = None) -> None:
        scope = agent or AllAgents()
        self.store.set_pointer(scope, self.store.pointer(scope).promoted(version))

    def prune(self, keep: int) -> list[str]:
        """What goes after it was not needed for long enough."""
        assert prune(self.store, keep=keep) == []
        self.now += LOADING
        return prune(self.store, keep=keep)

    @property
    def versions(self) -> set[str]:
        return set(self.store.manifests({}))


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_version_that_is_made_again_is_kept_as_a_new_one_is(kept: Kept) -> None:
    version = kept.write()
    kept.store.mark(version)
    kept.now += LOADING
    kept.now, then = NOON, kept.now
    assert kept.write() == version
    kept.now = then
    assert kept.store.mark(version) == timedelta(0)


def test_what_is_served_and_was_before_stays_and_the_newest_that_never_were(kept: Kept) -> None:
    served = [kept.write() for _ in range(4)]
    for version in served:
        kept.serve(version)
    never = [kept.write() for _ in range(3)]
    # Of those served: the one that is, and two before it; of those that never were: the two newest.
    assert set(kept.prune(2)) == {served[0], never[0]}
    assert kept.versions == {*served[1:], *never[1:]}
    for version in kept.versions:
        kept.store.verified(version)


def test_every_agent_keeps_its_own(kept: Kept) -> None:
    base = kept.write()
    kept.serve(base)
    ann = [kept.write(ANN, base) for _ in range(3)]
    bob = [kept.write(BOB) for _ in range(3)]
    kept.serve(ann[0], ANN)
    assert set(kept.prune(1)) == {ann[1], bob[0], bob[1]}


def test_what_an_adapter_changes_stays_while_the_adapter_does(kept: Kept) -> None:
    base = kept.write()
    kept.serve(base)
    adapter = kept.write(ANN, base)
    kept.serve(adapter, ANN)
    for _ in range(4):
        kept.serve(kept.write())
    assert base not in kept.prune(1)
    kept.serve(kept.write(BOB), BOB)
    other = kept.write(ANN)
    kept.serve(other, ANN)
    kept.serve(kept.write(ANN), ANN)
    # The adapter can no longer be rolled back to, and is not the newest: it goes, and its base with it.
    kept.write(ANN)
    assert set(kept.prune(1)) == {base, adapter}


def test_nothing_goes_before_whoever_found_it_has_loaded_it(kept: Kept) -> None:
    old, new = kept.write(), kept.write()
    kept.serve(new)
    kept.write()
    kept.now += 10 * LOADING
    assert prune(kept.store, keep=1) == []  # noted only now
    kept.now += LOADING - timedelta(seconds=1)
    assert prune(kept.store, keep=1) == []
    kept.store.verified(old)  # somebody is about to load it
    kept.now += timedelta(seconds=1)
    assert prune(kept.store, keep=1) == []
    kept.now += LOADING
    assert prune(kept.store, keep=1) == [old]


def test_what_is_needed_again_is_noted_anew(kept: Kept) -> None:
    old, _, newest = kept.write(), kept.write(), kept.write()
    assert prune(kept.store, keep=1) == []
    kept.now += LOADING / 2
    kept.serve(old)
    assert prune(kept.store, keep=1) == []
    kept.serve(newest)
    kept.serve(kept.write())
    kept.now += LOADING / 2
    assert old not in prune(kept.store, keep=1)


def test_what_a_process_serves_stays_whatever_the_pointers_say(kept: Kept) -> None:
    old = kept.write()
    kept.write()
    for _ in range(2):
        assert prune(kept.store, keep=1, in_memory=[old]) == []
        kept.now += LOADING


def test_nothing_goes_while_it_is_not_known_what_is_served(kept: Kept, tmp_path: Path) -> None:
    old, new = kept.write(ANN), kept.write(ANN)
    kept.serve(new, ANN)
    kept.write(ANN)
    prune(kept.store, keep=1)
    kept.now += LOADING
    (pointer,) = (tmp_path / "serving").glob("*.json")
    whole = pointer.read_bytes()
    for broken in (whole[:-5], b'{"agent": null}'):
        pointer.write_bytes(broken)
        assert prune(kept.store, keep=1) == []
    pointer.write_bytes(whole)
    assert prune(kept.store, keep=1) == [old]


def test_two_processes_remove_a_version_once(kept: Kept) -> None:
    old = kept.write()
    assert [kept.store.remove(old), kept.store.remove(old)] == [True, False]


def test_an_empty_store_has_nothing_to_remove(tmp_path: Path) -> None:
    assert prune(ModelStore(tmp_path / "none"), keep=1) == []


VERSIONS = [f"{at:016x}" for at in range(12)]


@given(
    st.lists(st.tuples(st.sampled_from([None, ANN, BOB]), st.integers(-1, 11)), min_size=12, max_size=12),
    st.dictionaries(
        st.sampled_from([AllAgents(), ANN, BOB]),
        st.lists(st.sampled_from([None, *VERSIONS]), min_size=1, max_size=6),
    ),
    st.integers(1, 4),
)
def test_whatever_is_served_can_be_loaded(
    made: list[tuple[Agent | None, int]], served: dict[Scope, list[str | None]], keep: int
) -> None:
    manifests = {}
    for at, (agent, base) in enumerate(made):
        of = VERSIONS[base] if 0 <= base < at and agent is not None and made[base][0] is None else ""
        lineage = Lineage("x", "", agent, Kind.ADAPTER if of else Kind.FULL, of)
        manifests[VERSIONS[at]] = Manifest(VERSIONS[at], NOON + timedelta(seconds=at), lineage, (), {})
    pointers = {agent: Pointer(one[0], tuple(one[1:])) for agent, one in served.items()}
    found = needed(manifests, pointers, keep)
    for pointer in pointers.values():
        for version in (pointer.serving, *pointer.history[:keep]):
            assert version is None or {version, manifests[version].lineage.base} - {""} <= found
    assert needed(manifests, pointers, keep + 1) >= found
    assert len(found) <= 2 * 3 * (1 + 2 * keep)
