"""Laws of syncs: idempotent, minimal, order-free, and killed anywhere and continued equals done at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.types.collection import Collection, Deleted, Ingested, Lexical
from evenmesh.types.passage import Passage
from evenmesh.wire.errors import NotFound
from evenmesh_documents.gathering import Spool
from evenmesh_documents.syncing import sync
from evenmesh_documents.syncing.naming import file_key, named
from evenmesh_documents.syncing.planning import Plan, Read

START = datetime(2026, 11, 25, 12, tzinfo=UTC)
GRACE = timedelta(hours=24)
FILES = ("a.md", "b.md", "folder/c.md", "folder/d#.md")

Files = Mapping[str, Mapping[str, str]]
"""What is read: of each file its texts, and the title of each."""


class KilledError(Exception):
    """What ends a sync in between."""


class MemoryMesh:
    """A collection in memory that takes so many changes and then ends its caller, before or after the last.

    Attributes:
        kept: its passages; None while there is no collection.
        touched: ids that were added, replaced or removed.
    """

    def __init__(self) -> None:
        self.kept: dict[str, Passage] | None = None
        self.touched: list[str] = []
        self.left: int | None = None

    def passages(self, name: str, *, prefix: str = "") -> Iterator[Passage]:
        if self.kept is None:
            raise NotFound("collection", "there is none")
        return iter([self.kept[one] for one in sorted(self.kept) if one.startswith(prefix)])

    def ingest(self, source: list[Passage], collection: str, *, lexical: Lexical | None = None) -> Ingested:
        self._count()
        self.kept = {**(self.kept or {}), **{one.id: one for one in source}}
        self.touched += [one.id for one in source]
        return Ingested(self._described(), len(source), 0, 0)

    def delete_passages(self, name: str, passage_ids: Iterable[str]) -> Deleted:
        self._count()
        ids = list(passage_ids)
        for one in ids:
            (self.kept or {}).pop(one, None)
        self.touched += ids
        return Deleted(self._described(), len(ids), 0)

    def _count(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise KilledError
            self.left -= 1

    def _described(self) -> Collection:
        return Collection("c", "v", len(self.kept or {}), 0, "", "english", "", START)


def run(
    mesh: MemoryMesh,
    files: Files,
    *,
    unread: Iterable[str] = (),
    now: datetime = START,
    grace: timedelta = GRACE,
    part: int = 2,
    source: str = "s",
) -> Plan:
    """Sync what was read."""
    passages = [
        Passage(named(source, file, text), text, title, {"provider": "P"})
        for file, texts in files.items()
        for text, title in texts.items()
    ]
    read = Read(sync.digests(passages), {file_key(file) for file in files}, tuple(unread))
    mesh.touched = []
    with Spool() as missing:
        found = sync.compare(mesh, source, "c", read, missing, now=now, grace=grace)
        sync.apply(mesh, "c", found, passages, missing, part=part)
    return found.plan


texts = st.dictionaries(st.sampled_from(["one", "two", "three"]), st.sampled_from(["T", "U"]), max_size=3)
states = st.dictionaries(st.sampled_from(FILES), texts, max_size=len(FILES))
moments = st.sampled_from([timedelta(0), timedelta(hours=1), GRACE, 2 * GRACE])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Files, set[str], datetime]]:
    """Return what is read, what cannot be, and when, of some syncs one after the other."""
    now, rounds = START, []
    for _ in range(draw(st.integers(1, 4))):
        files = draw(states)
        unread = draw(st.sets(st.sampled_from(FILES), max_size=2)) - set(files)
        now += draw(moments)
        rounds.append((files, unread, now))
    return rounds


def synced(history: list[tuple[Files, set[str], datetime]]) -> MemoryMesh:
    mesh = MemoryMesh()
    for files, unread, now in history:
        run(mesh, files, unread=unread, now=now)
    return mesh


@given(histories())
def test_a_second_sync_touches_nothing(history: list[tuple[Files, set[str], datetime]]) -> None:
    mesh = synced(history)
    before = dict(mesh.kept or {})
    files, unread, now = history[-1]
    plan = run(mesh, files, unread=unread, now=now)
    assert plan.changes == 0
    assert mesh.touched == []
    assert (mesh.kept or {}) == before


@given(histories())
def test_what_is_read_is_there_and_nothing_else_of_these_files(
    history: list[tuple[Files, set[str], datetime]],
) -> None:
    mesh = synced(history)
    files, unread, now = history[-1]
    of_read = {
        (one.id, one.title)
        for one in (mesh.kept or {}).values()
        if sync.MISSING_SINCE not in one.attributes and sync.file_of("s", one.id) in set(map(file_key, files))
    }
    assert of_read == {
        (named("s", file, text), title) for file, said in files.items() for text, title in said.items()
    }
    # All else is of files that cannot be read, or are missing for less than the grace.
    for one in (mesh.kept or {}).values():
        file = sync.file_of("s", one.id)
        if file in set(map(file_key, files)) or file in set(map(file_key, unread)):
            continue
        since = sync.marked_since(one)
        assert since is not None
        assert timedelta(0) <= now - since < GRACE


@given(histories(), states)
def test_a_sync_touches_exactly_what_differs(
    history: list[tuple[Files, set[str], datetime]], files: Files
) -> None:
    mesh = synced(history)
    before = dict(mesh.kept or {})
    run(mesh, files, now=history[-1][2])
    after = mesh.kept or {}
    differ = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
    assert sorted(mesh.touched) == sorted(differ)


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_files_and_passages_does_not_matter(
    history: list[tuple[Files, set[str], datetime]], rng: object
) -> None:
    def shuffled(files: Files) -> Files:
        names = list(files)
        rng.shuffle(names)  # type: ignore[attr-defined]
        return {name: dict(reversed(files[name].items())) for name in names}

    assert synced(history).kept == synced([(shuffled(files), *rest) for files, *rest in history]).kept  # type: ignore[misc]


@given(histories(), states, st.integers(0, 8), st.integers(1, 3))
def test_killed_anywhere_and_continued_equals_done_at_once(
    history: list[tuple[Files, set[str], datetime]], files: Files, changes: int, part: int
) -> None:
    now = history[-1][2] + timedelta(hours=2)
    at_once, killed = synced(history), synced(history)
    run(at_once, files, now=now, part=part)
    killed.left = changes
    with contextlib.suppress(KilledError):
        run(killed, files, now=now, part=part)
    killed.left = None
    run(killed, files, now=now)
    assert killed.kept == at_once.kept


@given(states, states, st.integers(0, 4))
def test_a_kill_while_marking_does_not_lengthen_the_grace(before: Files, after: Files, changes: int) -> None:
    mesh = MemoryMesh()
    run(mesh, before)
    mesh.left = changes
    with contextlib.suppress(KilledError):
        run(mesh, after, now=START + timedelta(hours=1), part=1)
    mesh.left = None
    marked = {sync.file_of("s", one.id) for one in (mesh.kept or {}).values() if sync.marked_since(one)}
    run(mesh, after, now=START + timedelta(hours=9))
    run(mesh, after, now=START + timedelta(hours=1) + GRACE)
    assert not marked & {sync.file_of("s", one) for one in mesh.kept or {}}


@given(states, states)
def test_whoever_asks_in_between_finds_old_or_new_text_of_every_file(before: Files, after: Files) -> None:
    mesh = MemoryMesh()
    run(mesh, before)
    for changes in range(12):
        cut = MemoryMesh()
        cut.kept = dict(mesh.kept) if mesh.kept is not None else None
        cut.left = changes
        try:
            run(cut, after, part=1)
        except KilledError:
            for file, said in after.items():
                if said and before.get(file):
                    assert any(sync.file_of("s", one) == file_key(file) for one in cut.kept or {})
        else:
            break


@given(states, states)
def test_two_sources_never_touch_each_other(mine: Files, theirs: Files) -> None:
    mesh = MemoryMesh()
    run(mesh, mine, source="s")
    kept = dict(mesh.kept or {})
    run(mesh, theirs, source="s-2")
    run(mesh, {}, source="s-2", grace=timedelta(0))
    assert (mesh.kept or {}) == kept


def test_a_missing_file_keeps_its_passages_for_the_grace_and_loses_the_mark_when_it_is_back() -> None:
    mesh = MemoryMesh()
    both = {"a.md": {"one": "T"}, "b.md": {"two": "T"}}
    run(mesh, both)
    plan = run(mesh, {"a.md": {"one": "T"}}, now=START + timedelta(hours=1))
    assert (plan.unchanged, len(plan.mark), plan.due) == (1, 1, START + timedelta(hours=25))
    assert mesh.kept is not None
    assert mesh.kept["s:b.md#two"].attributes == {"provider": "P", "missing_since": "2026-11-25T13:00:00Z"}

    plan = run(mesh, {"a.md": {"one": "T"}}, now=START + timedelta(hours=20))
    assert (plan.waiting, plan.changes) == (1, 0)
    run(mesh, both, now=START + timedelta(hours=21))
    assert mesh.kept["s:b.md#two"].attributes == {"provider": "P"}

    run(mesh, {"a.md": {"one": "T"}}, now=START + timedelta(hours=22))
    run(mesh, {"a.md": {"one": "T"}}, now=START + timedelta(hours=46))
    assert list(mesh.kept) == ["s:a.md#one"]


def test_text_that_a_changed_file_no_longer_has_goes_at_once() -> None:
    mesh = MemoryMesh()
    run(mesh, {"a.md": {"one": "T", "two": "T"}})
    plan = run(mesh, {"a.md": {"one": "T", "three": "T"}})
    assert (plan.add, plan.delete, plan.unchanged) == ({"s:a.md#three"}, ("s:a.md#two",), 1)


@pytest.mark.parametrize(
    ("unread", "stay"),
    [
        ((), set()),
        (("folder/c.md",), {"s:folder/c.md#x"}),
        (("folder",), {"s:folder/c.md#x", "s:folder/d%23.md#x"}),
        (("fold",), set()),
        ((".",), {"s:a.md#x", "s:b.md#x", "s:folder/c.md#x", "s:folder/d%23.md#x"}),
    ],
)
def test_what_cannot_be_read_keeps_its_passages(unread: tuple[str, ...], stay: set[str]) -> None:
    mesh = MemoryMesh()
    run(mesh, {file: {"x": "T"} for file in FILES})
    plan = run(mesh, {}, unread=unread, grace=timedelta(0))
    assert mesh.kept is not None
    assert set(mesh.kept) == stay
    assert plan.unread == len(stay)


def test_a_mark_that_is_no_time_counts_from_now_and_one_of_the_future_too() -> None:
    for mark in ("soon", "2999-01-01T00:00:00Z"):
        mesh = MemoryMesh()
        mesh.kept = {"s:a.md#x": Passage("s:a.md#x", "x", "", {"missing_since": mark})}
        plan = run(mesh, {})
        assert plan.mark == {"s:a.md#x": START}


def test_a_marked_passage_of_64_attributes_still_fits() -> None:
    full = Passage("s:a.md#x", "x", "", {f"a{number:02}": "v" for number in range(64)})
    marked = sync.with_mark(full, START)
    assert len(marked.attributes) == 64
    assert sync.marked_since(marked) == START


def test_a_file_that_states_the_mark_itself_is_not_taken_as_missing() -> None:
    stated = Passage("s:a.md#x", "x", "", {"missing_since": "2026-01-01T00:00:00Z"})
    mesh = MemoryMesh()
    read = Read(sync.digests([stated]), {"a.md"})
    for expected in (1, 0):
        with Spool() as missing:
            found = sync.compare(mesh, "s", "c", read, missing, now=START, grace=GRACE)
            sync.apply(mesh, "c", found, [stated], missing)
        assert found.plan.changes == expected
