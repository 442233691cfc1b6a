"""One writer per folder where no lock holds across machines: leases, and writers that were only slow."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_kit.storage import durable_files
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.files import dense, faults, lease
from evenmesh_retriever.backends.segments.files.lease import Fenced, WriterLease
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import Options, SegmentStore
from evenmesh_retriever.domain import Lexical, Passage
from evenmesh_retriever.ports import CannotStart
from tests.support.waiting import until

Take = Callable[..., WriterLease]


class NoLock:
    """A lock that another machine does not see."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def release(self) -> None:
        pass


class Machines:
    """Makes the next writer one of another machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._number = 0
        monkeypatch.setattr(lease, "FolderLock", NoLock)
        self.next()

    def next(self) -> None:
        self._number += 1
        name = f"machine-{self._number}"
        self._monkeypatch.setattr(lease, "machine", lambda: name)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(monkeypatch)


@pytest.fixture
def take(tmp_path: Path) -> Iterator[Take]:
    """Takes the lease of the test's folder; what is taken is released at the end."""
    taken: list[WriterLease] = []

    def take(**options: object) -> WriterLease:
        taken.append(WriterLease(tmp_path, **options))
        return taken[-1]

    yield take
    for one in taken:
        with suppress(OSError):  # released in the test
            one.release()


def stopped(writer: WriterLease) -> None:
    """As its machine would be: it beats no more, and has not let go."""
    writer._released.set()
    writer._beating.join()


def test_terms_grow_and_one_is_there(take: Take, tmp_path: Path) -> None:
    first = take()
    assert (first.number, first.inherited) == (1, True)
    first.release()
    second = take()
    assert (second.number, second.inherited) == (2, True)
    assert [path.name for path in (tmp_path / lease.TERMS).iterdir()] == [".000002"]


def test_a_predecessor_of_this_machine_is_not_waited_for(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "FolderLock", NoLock)  # it has ended, and its lock with it
    stopped(take(lease_s=3600))
    assert take().number == 2


def test_one_that_lives_on_another_machine_keeps_the_folder(
    take: Take, machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lease, "_BEATS_A_LEASE", 1000)
    monkeypatch.setattr(lease, "_LOOKS", 1000)
    first = take(lease_s=60)
    machines.next()
    with pytest.raises(CannotStart, match=rf"another retriever \(process {os.getpid()} on .*\) keeps"):
        WriterLease(tmp_path, lease_s=1)  # the lease that counts is the holder's
    first.replace(tmp_path / "pointer", b"first")
    assert not first.lost.is_set()


def test_who_waits_takes_over_once_the_other_has_let_go(
    take: Take, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOOKS", 10_000)
    first = take(lease_s=600)
    machines.next()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(take, wait_s=600)
        first.release()
        assert waiting.result(60).number == 2
    assert waiting.result().inherited  # it ended as it should: nothing of it writes any more


def test_one_that_is_not_heard_of_loses_the_folder_and_learns_it(
    take: Take, machines: Machines, tmp_path: Path
) -> None:
    lost: list[bool] = []
    first = take(lease_s=0.2, on_lost=lambda: lost.append(True))
    first.replace(tmp_path / "pointer", b"first")
    staged = first.stage()
    staged.mkdir()
    stopped(first)
    machines.next()
    second = take(lease_s=0.2)
    assert (second.number, second.inherited) == (2, False)
    second.replace(tmp_path / "pointer", b"second")
    for write in (
        lambda: first.replace(tmp_path / "pointer", b"late"),
        lambda: first.place(staged, tmp_path / "collection"),
        lambda: first.discard(tmp_path / "pointer"),
        lambda: first.withdraw(tmp_path / "pointer", tmp_path / "grave"),
    ):
        with pytest.raises(Fenced):
            write()
    assert (tmp_path / "pointer").read_bytes() == b"second"
    assert first.lost.is_set()
    assert lost == [True]


def test_one_that_goes_on_beating_learns_it_too(
    take: Take, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take(lease_s=0.2)
    stopped(first)
    machines.next()
    take(lease_s=0.2)
    first._released.clear()
    first._beat()
    assert first.lost.is_set()


def test_a_write_that_is_overtaken_between_writing_and_renaming_has_no_effect(
    take: Take, machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = take(lease_s=0.2)
    stopped(first)
    write = durable_files.write

    def paused(path: Path, content: bytes) -> None:
        write(path, content)
        monkeypatch.undo()
        machines.next()
        take(lease_s=0.2).replace(tmp_path / "pointer", b"second")

    monkeypatch.setattr(durable_files, "write", paused)
    monkeypatch.setattr(lease, "FolderLock", NoLock)
    with pytest.raises(Fenced):
        first.replace(tmp_path / "pointer", b"first")
    assert (tmp_path / "pointer").read_bytes() == b"second"


def test_of_two_that_wait_one_takes_over(
    take: Take, machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped(take(lease_s=0.2))
    monkeypatch.setattr(lease, "machine", lambda: threading.current_thread().name)
    monkeypatch.setattr(lease, "_BEATS_A_LEASE", 1000)

    def taken() -> WriterLease | CannotStart:
        try:
            return WriterLease(tmp_path, lease_s=2)
        except CannotStart as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda _: taken(), range(2)))
    (winner,) = [one for one in results if isinstance(one, WriterLease)]
    assert winner.number == 2
    winner.replace(tmp_path / "pointer", b"2")
    winner.release()


def opened(root: Path, **options: float) -> SegmentStore:
    recipe = SegmentIndexing(cache(analyzer), None)
    return SegmentStore(root, recipe, lambda _: None, Options(lease_s=0.2, **options))


def some(*ids: str, text: str = "text") -> list[Passage]:
    return [Passage(one, "", f"{text} {one}") for one in ids]


def texts(store: SegmentStore, name: str = "c") -> dict[str, str]:
    with store.of(DEFAULT_TENANT).lease(name) as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        assert snapshot.info.warning == ""
        return {one.id: one.text for one in snapshot.passages(snapshot.rows().tolist())}


@pytest.mark.parametrize(
    "point", ["ingest.half-written", "ingest.written", "ingest.moved", "ingest.tombstones",
              "swap.version-written", "swap.done", "sweep.begun"],
)  # fmt: skip
async def test_a_writer_that_is_overtaken_at_any_point_harms_nothing(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str
) -> None:
    lost: list[bool] = []
    slow, successor = opened(tmp_path), opened(tmp_path)
    slow._on_lost = lambda: lost.append(True)
    await slow.start()
    collections = slow.of(DEFAULT_TENANT)
    await collections.ingest("c", some("a", "b"), create=True)
    held = [texts(slow)]
    loop = asyncio.get_running_loop()
    assert slow._lease is not None
    stopped(slow._lease)
    begun = False

    async def take_over() -> None:
        machines.next()
        await successor.start()
        held.append(texts(successor))
        for one in ("x", "y"):  # twice, so that the version that was there is swept
            await successor.of(DEFAULT_TENANT).ingest("c", some(one, text="later"), create=False)
        held.append(texts(successor))

    def paused(name: str) -> None:
        nonlocal begun
        if name == point and not begun:
            begun = True
            asyncio.run_coroutine_threadsafe(take_over(), loop).result(60)

    monkeypatch.setattr(faults, "point", paused)
    try:
        late = collections.ingest("c", some("a", "c", text="slow"), create=False)
        if point in ("swap.done", "sweep.begun"):
            assert (await late).added == 1  # it was before the successor looked
            assert held[1] == {"a": "slow a", "b": "text b", "c": "slow c"}
        else:
            with pytest.raises(Unavailable, match="another retriever has taken over") as error:
                await late
            assert error.value.reason == "NOT_THE_WRITER"
            assert held[1] == held[0]
        assert begun
        assert texts(successor) == held[2] == {**held[1], "x": "later x", "y": "later y"}
        # Nor does anything else that it does.
        for write in (
            collections.drop("c"),
            collections.create("d", "", Lexical()),
            collections.delete_passages("c", ["a"]),
        ):
            with pytest.raises(Unavailable):
                await write
        assert lost == [True]
    finally:
        monkeypatch.setattr(faults, "point", lambda _: None)
        await slow.stop()
        await successor.stop()
    again = opened(tmp_path, verify_bytes=2**30)
    await again.start()
    assert texts(again) == held[2]
    await again.stop()


async def test_what_was_replaced_stays_for_those_that_read_it_elsewhere(tmp_path: Path) -> None:
    store = opened(tmp_path, keep_s=3600)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    folder = tmp_path / DEFAULT_TENANT / "c"
    for number in range(4):
        await collections.ingest("c", some("a", text=f"text {number}"), create=True)
    await store.settled()
    versions = len(list(folder.glob("versions/*.json")))
    segments = len(list(folder.glob("segments/*")))
    assert versions >= 4
    assert segments >= 4
    await store.stop()

    store = opened(tmp_path, keep_s=3600)  # a restart keeps it, too
    await store.start()
    assert len(list(folder.glob("versions/*.json"))) == versions
    assert len(list(folder.glob("segments/*"))) == segments
    await store.of(DEFAULT_TENANT).drop("c")
    await store.stop()
    assert not folder.exists()
    (grave,) = folder.parent.glob(".old-*")
    assert len(list(grave.glob("segments/*"))) == segments

    store = opened(tmp_path, keep_s=0.01)
    await store.start()
    await until(lambda: not grave.exists())
    collections = store.of(DEFAULT_TENANT)
    for number in range(4):
        await collections.ingest("c", some("a", text=f"text {number}"), create=True)
    await until(lambda: len(list(folder.glob("versions/*.json"))) <= 2)  # without another write
    await store.stop()


@pytest.mark.parametrize("fails", ["mkdir", "first file", "second file"])
def test_a_disk_that_a_killed_writer_filled_is_freed_before_the_next_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The disk is full for as long as what was staged is there."""
    killed = WriterLease(tmp_path)
    staged = killed.stage()
    staged.mkdir()
    (staged / "vectors.npy").write_bytes(bytes(1000))
    killed._lock.release()  # as the system does when a process is killed
    killed._released.set()

    def when_full(function: Callable[..., None]) -> Callable[..., None]:
        def checked(path: Path, *args: object, **options: object) -> None:
            if staged.exists() and path.name != lease.TERMS:
                raise OSError(errno.ENOSPC, "No space left on device")
            function(path, *args, **options)

        return checked

    if fails == "mkdir":
        monkeypatch.setattr(Path, "mkdir", when_full(Path.mkdir))
    else:
        sync, rooms = os.fsync, iter(range(1) if fails == "second file" else ())

        def full(descriptor: int) -> None:
            # The name of a file has its place, and its content none.
            if staged.exists() and stat.S_ISREG(os.fstat(descriptor).st_mode) and next(rooms, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", full)
    following = WriterLease(tmp_path)
    monkeypatch.undo()
    assert following.number == killed.number + 1
    assert not killed.term.exists()
    assert lease.holder_of(following.term) is not None
    following.release()


def test_vectors_have_their_room_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a disk that fills up meanwhile would end the process by a signal."""
    dense.new_vectors(tmp_path / "some", 1000, 384)
    if hasattr(os, "posix_fallocate"):
        found = (tmp_path / "some" / dense.VECTORS).stat()
        assert found.st_blocks * 512 >= found.st_size

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            dense.new_vectors(tmp_path / "more", 1000, 384)
