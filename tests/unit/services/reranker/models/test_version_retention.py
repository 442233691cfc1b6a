"""Old versions go, and nothing that is served, rolled back to, or being loaded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reranker.domain import Agent, Audience, Everyone
from services.reranker.models.manifest import Kind, Lineage, Manifest
from services.reranker.models.retention import LOADING, needed, prune
from services.reranker.models.store import ModelStore, Pointer

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Shelf:
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
        whose = agent or Everyone()
        self.store.set_pointer(whose, self.store.pointer(whose).promoted(version))

    def prune(self, keep: int) -> list[str]:
        """What goes after it was not needed for long enough."""
        assert prune(self.store, keep=keep) == []
        self.now += LOADING
        return prune(self.store, keep=keep)

    @property
    def versions(self) -> set[str]:
        return set(self.store.manifests({}))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_a_version_that_is_made_again_is_kept_as_a_new_one_is(shelf: Shelf) -> None:
    version = shelf.write()
    shelf.store.mark(version)
    shelf.now += LOADING
    shelf.now, then = NOON, shelf.now
    assert shelf.write() == version
    shelf.now = then
    assert shelf.store.mark(version) == timedelta(0)


def test_what_is_served_and_was_before_stays_and_the_newest_that_never_were(shelf: Shelf) -> None:
    served = [shelf.write() for _ in range(4)]
    for version in served:
        shelf.serve(version)
    never = [shelf.write() for _ in range(3)]
    # Of those served: the one that is, and two before it; of those that never were: the two newest.
    assert set(shelf.prune(2)) == {served[0], never[0]}
    assert shelf.versions == {*served[1:], *never[1:]}
    for version in shelf.versions:
        shelf.store.verified(version)


def test_every_agent_keeps_its_own(shelf: Shelf) -> None:
    base = shelf.write()
    shelf.serve(base)
    ann = [shelf.write(ANN, base) for _ in range(3)]
    bob = [shelf.write(BOB) for _ in range(3)]
    shelf.serve(ann[0], ANN)
    assert set(shelf.prune(1)) == {ann[1], bob[0], bob[1]}


def test_what_an_adapter_changes_stays_while_the_adapter_does(shelf: Shelf) -> None:
    base = shelf.write()
    shelf.serve(base)
    adapter = shelf.write(ANN, base)
    shelf.serve(adapter, ANN)
    for _ in range(4):
        shelf.serve(shelf.write())
    assert base not in shelf.prune(1)
    shelf.serve(shelf.write(BOB), BOB)
    other = shelf.write(ANN)
    shelf.serve(other, ANN)
    shelf.serve(shelf.write(ANN), ANN)
    # The adapter can no longer be rolled back to, and is not the newest: it goes, and its base with it.
    shelf.write(ANN)
    assert set(shelf.prune(1)) == {base, adapter}


def test_nothing_goes_before_whoever_found_it_has_loaded_it(shelf: Shelf) -> None:
    old, new = shelf.write(), shelf.write()
    shelf.serve(new)
    shelf.write()
    shelf.now += 10 * LOADING
    assert prune(shelf.store, keep=1) == []  # noted only now
    shelf.now += LOADING - timedelta(seconds=1)
    assert prune(shelf.store, keep=1) == []
    shelf.store.verified(old)  # somebody is about to load it
    shelf.now += timedelta(seconds=1)
    assert prune(shelf.store, keep=1) == []
    shelf.now += LOADING
    assert prune(shelf.store, keep=1) == [old]


def test_what_is_needed_again_is_noted_anew(shelf: Shelf) -> None:
    old, _, newest = shelf.write(), shelf.write(), shelf.write()
    assert prune(shelf.store, keep=1) == []
    shelf.now += LOADING / 2
    shelf.serve(old)
    assert prune(shelf.store, keep=1) == []
    shelf.serve(newest)
    shelf.serve(shelf.write())
    shelf.now += LOADING / 2
    assert old not in prune(shelf.store, keep=1)


def test_what_a_process_serves_stays_whatever_the_pointers_say(shelf: Shelf) -> None:
    old = shelf.write()
    shelf.write()
    for _ in range(2):
        assert prune(shelf.store, keep=1, in_memory=[old]) == []
        shelf.now += LOADING


def test_nothing_goes_while_it_is_not_known_what_is_served(shelf: Shelf, tmp_path: Path) -> None:
    old, new = shelf.write(ANN), shelf.write(ANN)
    shelf.serve(new, ANN)
    shelf.write(ANN)
    prune(shelf.store, keep=1)
    shelf.now += LOADING
    (pointer,) = (tmp_path / "serving").glob("*.json")
    whole = pointer.read_bytes()
    for broken in (whole[:-5], b'{"agent": null}'):
        pointer.write_bytes(broken)
        assert prune(shelf.store, keep=1) == []
    pointer.write_bytes(whole)
    assert prune(shelf.store, keep=1) == [old]


def test_two_processes_remove_a_version_once(shelf: Shelf) -> None:
    old = shelf.write()
    assert [shelf.store.remove(old), shelf.store.remove(old)] == [True, False]


def test_an_empty_store_has_nothing_to_remove(tmp_path: Path) -> None:
    assert prune(ModelStore(tmp_path / "none"), keep=1) == []


VERSIONS = [f"{at:016x}" for at in range(12)]


@given(
    st.lists(st.tuples(st.sampled_from([None, ANN, BOB]), st.integers(-1, 11)), min_size=12, max_size=12),
    st.dictionaries(
        st.sampled_from([Everyone(), ANN, BOB]),
        st.lists(st.sampled_from([None, *VERSIONS]), min_size=1, max_size=6),
    ),
    st.integers(1, 4),
)
def test_whatever_is_served_can_be_loaded(
    made: list[tuple[Agent | None, int]], served: dict[Audience, list[str | None]], keep: int
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
