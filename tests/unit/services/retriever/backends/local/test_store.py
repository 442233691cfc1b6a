"""Collections on disk: versions, readers, writers, and what is left after a fall."""

import asyncio
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Event

import grpc
import numpy as np
import pytest

from meshkit.errors import AlreadyExists, FailedPrecondition, MeshError, NotFound, Unavailable
from services.retriever.analyzer import UnicodeWordAnalyzer
from services.retriever.backends.bm25.postings import build
from services.retriever.backends.local import durable
from services.retriever.backends.local.snapshot import LocalSnapshot
from services.retriever.backends.local.store import LocalStore
from services.retriever.domain import Passage
from services.retriever.ports import CannotStart

CRASHING = Path(__file__).with_name("crashing.py")


def passages(*ids: str, text: str = "text of") -> list[Passage]:
    return [Passage(one, "", f"{text} {one}") for one in ids]


def content(store: LocalStore, name: str = "c") -> list[Passage]:
    with store.lease(name) as snapshot:
        return snapshot.passages(range(len(snapshot)))


def folders(root: Path, name: str = "c") -> list[str]:
    return sorted(path.name for path in (root / "collections" / name).iterdir() if path.is_dir())


async def test_ingest_delete_describe(open_store, tmp_path: Path) -> None:
    store = await open_store()
    created = await store.create("c", "about things")
    assert (created.num_passages, created.encoder, created.description) == (0, "", "about things")

    report = await store.ingest("c", passages("b", "a", "c"), create=False)
    assert (report.added, report.replaced, report.unchanged) == (3, 0, 0)
    assert [passage.id for passage in content(store)] == ["a", "b", "c"]  # by ascending id

    report = await store.ingest("c", [*passages("c", "d"), Passage("a", "new", "text")], create=True)
    assert (report.added, report.replaced, report.unchanged) == (1, 1, 1)
    assert content(store)[0] == Passage("a", "new", "text")
    assert report.collection == store.describe("c") == store.list()[0]
    assert report.collection.description == "about things"
    assert report.collection.version != created.version

    deletion = await store.delete_passages("c", ["b", "x", "d"])
    assert (deletion.deleted, deletion.missing, deletion.collection.num_passages) == (2, 1, 2)
    assert [passage.id for passage in content(store)] == ["a", "c"]

    on_disk = sum(
        path.stat().st_size for path in (tmp_path / "collections/c" / folders(tmp_path)[-1]).iterdir()
    )
    assert store.describe("c").size_bytes == on_disk


async def test_the_same_again_changes_nothing(open_store) -> None:
    store = await open_store()
    first = await store.ingest("c", passages("a", "b"), create=True)
    again = await store.ingest("c", passages("b", "a"), create=True)
    assert (again.added, again.replaced, again.unchanged) == (0, 0, 2)
    assert again.collection == first.collection
    assert (await store.delete_passages("c", ["x"])).collection == first.collection


async def test_an_update_equals_a_fresh_build(open_store) -> None:
    store = await open_store()
    await store.ingest("c", passages("d", "b", text="Alpha beta alpha"), create=True)
    await store.ingest("c", passages("a", "d", text="gamma Alpha"), create=False)
    await store.delete_passages("c", ["b"])
    with store.lease("c") as snapshot:
        assert isinstance(snapshot, LocalSnapshot)
        fresh = build(UnicodeWordAnalyzer().tokens(passage.content) for passage in content(store))
        assert list(snapshot.postings.terms) == list(fresh.terms) == ["gamma", "alpha", "a", "d"]
        np.testing.assert_array_equal(snapshot.postings.counts, fresh.counts)
        np.testing.assert_array_equal(snapshot.postings.rows, fresh.rows)


async def test_what_was_acknowledged_is_there_after_a_restart(open_store) -> None:
    store = await open_store()
    await store.ingest("c", passages("a", "b"), create=True)
    await store.create("empty", "")
    before = store.list()
    kept = content(store)
    await store.stop()
    store = await open_store()
    assert store.list() == before
    assert content(store) == kept
    assert content(store, "empty") == []


async def test_names_that_are_taken_or_unknown(open_store) -> None:
    store = await open_store()
    await store.create("c", "")
    with pytest.raises(AlreadyExists, match="'c'") as taken:
        await store.create("c", "")
    assert taken.value.field == "name"
    for field, call in [
        ("collection", store.ingest("x", passages("a"), create=False)),
        ("collection", store.delete_passages("x", ["a"])),
        ("name", store.drop("x")),
    ]:
        with pytest.raises(NotFound, match="'x'") as unknown:
            await call
        assert unknown.value.field == field
    with pytest.raises(NotFound):
        store.describe("x")


async def test_drop(open_store, tmp_path: Path) -> None:
    store = await open_store()
    await store.ingest("c", passages("a"), create=True)
    with store.lease("c") as snapshot:
        await store.drop("c")
        assert store.list() == []
        assert snapshot.passages([0]) == passages("a")  # its readers read on
    assert [path.name for path in (tmp_path / "collections").iterdir()] == [".lock"]
    assert (await store.create("c", "anew")).num_passages == 0


async def test_readers_keep_their_version_and_two_stay_on_disk(open_store, tmp_path: Path) -> None:
    store = await open_store()
    versions = [(await store.ingest("c", passages("a"), create=True)).collection.version]
    with store.lease("c") as snapshot:
        for text in ("two", "three", "four"):
            report = await store.ingest("c", passages("a", text=text), create=False)
            versions.append(report.collection.version)
        assert snapshot.passages([0]) == passages("a")
        assert snapshot.info.version == versions[0]
        await settled(store)
        assert folders(tmp_path) == [versions[0], *versions[2:]]
    await settled(store)
    assert folders(tmp_path) == versions[2:]


async def settled(store: LocalStore) -> None:
    """Waits for removals to end: a write of the same store runs after them."""
    while store._tasks:
        await asyncio.wait(store._tasks)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("file", ["passages.bin", "postings.rows.npy", "terms.txt", "manifest.json"])
async def test_a_corrupt_version_is_named_and_the_one_before_served(
    open_store, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: str
) -> None:
    store = await open_store()
    first = await store.ingest("c", passages("a"), create=True)
    second = await store.ingest("c", passages("a", "b"), create=True)
    await store.stop()
    spoil(tmp_path / "collections/c" / second.collection.version / file, damage)

    store = await open_store()
    assert store.describe("c") == first.collection
    assert f"{second.collection.version}/{file}" in caplog.text
    # The next version is a third one, and the sound one stays in case that goes bad too.
    third = await store.ingest("c", passages("a", "c"), create=False)
    await settled(store)
    assert third.collection.version.startswith("000003-")
    assert [passage.id for passage in content(store)] == ["a", "c"]
    assert first.collection.version in folders(tmp_path)


def spoil(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


async def test_a_collection_without_a_sound_version(open_store, tmp_path: Path) -> None:
    store = await open_store()
    report = await store.ingest("c", passages("a"), create=True)
    await store.ingest("other", passages("a"), create=True)
    await store.stop()
    spoil(tmp_path / "collections/c" / report.collection.version / "passages.npy", "flip")

    store = await open_store()
    assert [info.name for info in store.list()] == ["other"]
    for call in (store.describe, lambda name: store.lease(name).__enter__()):
        with pytest.raises(FailedPrecondition, match=r"passages\.npy does not have the SHA-256") as corrupt:
            call("c")
        assert corrupt.value.reason == "COLLECTION_CORRUPT"
        assert str(tmp_path) not in corrupt.value.message
    with pytest.raises(FailedPrecondition):
        await store.ingest("c", passages("a"), create=True)
    with pytest.raises(AlreadyExists):
        await store.create("c", "")
    await store.drop("c")
    assert (await store.ingest("c", passages("a"), create=True)).added == 1


@pytest.mark.parametrize("pointer", [b"", b"000009-0123456789ab", b"../../etc", b"\xff\xfe", None])
async def test_a_damaged_pointer(open_store, tmp_path: Path, pointer: bytes | None) -> None:
    store = await open_store()
    report = await store.ingest("c", passages("a"), create=True)
    await store.stop()
    path = tmp_path / "collections/c/CURRENT"
    path.unlink() if pointer is None else path.write_bytes(pointer)
    store = await open_store()
    assert store.describe("c") == report.collection
    assert (await store.ingest("c", passages("b"), create=False)).added == 1


async def test_a_version_of_another_collection_is_not_served(open_store, tmp_path: Path) -> None:
    store = await open_store()
    await store.ingest("c", passages("a"), create=True)
    await store.stop()
    shutil.move(tmp_path / "collections/c", tmp_path / "collections/d")
    store = await open_store()
    assert store.list() == []
    with pytest.raises(FailedPrecondition, match="of collection 'c'"):
        store.describe("d")


async def test_a_format_of_the_future_is_named(open_store, tmp_path: Path) -> None:
    store = await open_store()
    report = await store.ingest("c", passages("a"), create=True)
    await store.stop()
    folder = tmp_path / "collections/c" / report.collection.version
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["format_version"] = 2
    (folder / "manifest.json").write_text(json.dumps(manifest))
    renamed = f"000001-{hashlib.sha256((folder / 'manifest.json').read_bytes()).hexdigest()[:12]}"
    folder.rename(folder.with_name(renamed))
    (folder.parent / "CURRENT").write_text(renamed)
    store = await open_store()
    with pytest.raises(FailedPrecondition, match="a format that this version of ragmesh does not know"):
        store.describe("c")


async def test_leftovers_are_removed_and_never_served(open_store, tmp_path: Path) -> None:
    store = await open_store()
    report = await store.ingest("c", passages("a"), create=True)
    await store.stop()
    root = tmp_path / "collections"
    current = root / "c" / report.collection.version
    shutil.copytree(current, root / "c/.build-123456")
    shutil.copytree(current, root / "c/000007-0123456789ab")  # written, never made current
    shutil.copytree(root / "c", root / ".new-123456")
    shutil.copytree(root / "c", root / ".old-123456")
    store = await open_store()
    assert store.list() == [report.collection]
    assert sorted(path.name for path in root.iterdir()) == [".lock", "c"]
    assert folders(tmp_path) == [report.collection.version]


async def test_one_store_per_folder(open_store, tmp_path: Path) -> None:
    store = await open_store()
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from services.retriever.analyzer import UnicodeWordAnalyzer\n"
        "from services.retriever.backends.local.build import Recipe\n"
        "from services.retriever.backends.local.store import LocalStore\n"
        "from services.retriever.ports import CannotStart\n"
        "store = LocalStore(Path(sys.argv[1]), Recipe(UnicodeWordAnalyzer(), None), lambda _: None)\n"
        "try: asyncio.run(store.start())\n"
        "except CannotStart as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "collections")]
    told = (
        await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    ).stdout
    assert told.strip().splitlines() == [
        f"another retriever (process {os.getpid()}) keeps the collections in {tmp_path / 'collections'}: "
        "stop it, or set RAGMESH_HOME to another folder"
    ]
    await store.stop()
    freed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert freed.stdout == ""


async def test_a_home_that_cannot_be_written(open_store, tmp_path: Path) -> None:
    (tmp_path / "collections").write_text("not a folder")
    with pytest.raises(CannotStart, match="set RAGMESH_HOME to a folder that can be written"):
        await open_store()


async def test_a_full_disk_keeps_nothing(open_store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store()
    report = await store.ingest("c", passages("a"), create=True)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(MeshError) as error:
        await store.ingest("c", passages("b"), create=False)
    assert (error.value.code, error.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FULL")
    with pytest.raises(MeshError, match="nothing was kept"):
        await store.create("d", "")
    monkeypatch.undo()
    assert store.list() == [report.collection]
    assert folders(tmp_path) == [report.collection.version]
    assert (await store.ingest("c", passages("b"), create=False)).added == 1


async def test_a_write_whose_caller_goes_away_leaves_nothing(open_store, tmp_path: Path) -> None:
    building, may_go_on = Event(), Event()

    def prepare(snapshot: LocalSnapshot) -> None:
        if len(snapshot) == 2:
            building.set()
            assert may_go_on.wait(60)

    store = await open_store(prepare=prepare)
    report = await store.ingest("c", passages("a"), create=True)
    ingest = asyncio.create_task(store.ingest("c", passages("b"), create=False))
    await asyncio.to_thread(building.wait, 60)
    ingest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ingest
    may_go_on.set()
    await settled(store)
    assert store.describe("c") == report.collection
    assert folders(tmp_path) == [report.collection.version]


async def test_a_write_that_a_shutdown_cuts_short_is_told_so(open_store) -> None:
    building, may_go_on = Event(), Event()

    def prepare(snapshot: LocalSnapshot) -> None:
        building.set()
        assert may_go_on.wait(60)

    store = await open_store(prepare=prepare)
    ingest = asyncio.create_task(store.ingest("c", passages("a"), create=True))
    await asyncio.to_thread(building.wait, 60)
    stop = asyncio.create_task(store.stop())
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(Unavailable, match="nothing was kept"):
        await ingest
    await stop
    assert (await open_store()).list() == []


async def test_writers_take_turns_and_readers_see_whole_versions(open_store) -> None:
    store = await open_store()
    ids = [f"p{row:02}" for row in range(40)]
    texts_of: dict[str, str] = {}

    async def write(text: str) -> None:
        report = await store.ingest("c", passages(*ids, text=text), create=True)
        texts_of[report.collection.version] = text

    await write("first")
    seen: list[tuple[str, set[str]]] = []
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            with store.lease("c") as snapshot:
                found = await asyncio.to_thread(snapshot.passages, range(len(snapshot)))
            seen.append((snapshot.info.version, {passage.text.split()[0] for passage in found}))
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read()) for _ in range(4)]
    await asyncio.gather(*(write(f"text{number}") for number in range(8)))
    done.set()
    await asyncio.gather(*readers)
    assert len(texts_of) == 9
    assert len({version for version, _ in seen}) > 1
    assert all(texts == {texts_of[version]} for version, texts in seen)


@pytest.mark.parametrize("action", ["ingest", "create", "drop"])
def test_killed_at_any_step_the_last_acknowledged_state_is_there(tmp_path: Path, action: str) -> None:
    """Kills a writing process at every call that makes something durable, one after the other."""
    told = subprocess.run(
        [sys.executable, str(CRASHING), str(tmp_path), action], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    outcomes = json.loads(told.stdout)
    states = [outcome["state"] for outcome in outcomes]
    before, after = outcomes[0]["before"], outcomes[0]["after"]
    assert before != after
    *killed, last = outcomes
    assert len(killed) > {"ingest": 12, "create": 12, "drop": 1}[action]
    assert all(outcome["killed"] and not outcome["acknowledged"] for outcome in killed)
    # The last run was not killed: its acknowledgement holds.
    assert last["acknowledged"]
    assert last["state"] == after
    # Before the one step that counts a crash leaves the old state, from then on the new one; never a mixture.
    turn = states.index(after)
    assert states == [before] * turn + [after] * (len(states) - turn)
    assert turn >= len(states) // 2 or action == "drop"
    # And the collection can be written again, with nothing of the crash left on disk.
    assert all(outcome["again"] == 1 and not outcome["leftovers"] for outcome in outcomes)
