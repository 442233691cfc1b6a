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
from typing import Any

import grpc
import pytest

from evenmesh.wire.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Unavailable,
)
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.backends.segments.building import merge
from evenmesh_retriever.backends.segments.files import arrays
from evenmesh_retriever.backends.segments.quotas import Limit, Quotas
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Lexical, Passage
from evenmesh_retriever.ports import CannotStart, TenantCollections


def passages(*ids: str, text: str = "text of") -> list[Passage]:
    return [Passage(one, "", f"{text} {one}") for one in ids]


def content(store: TenantCollections, name: str = "c") -> list[Passage]:
    with store.lease(name) as snapshot:
        assert isinstance(snapshot, SegmentSnapshot)
        return snapshot.passages(snapshot.rows().tolist())


def home(root: Path, name: str = "c") -> Path:
    return root / "collections" / DEFAULT_TENANT / name


def versions(root: Path) -> list[str]:
    return sorted(path.stem for path in (home(root) / "versions").glob("*.json"))


@pytest.fixture
def reopened(open_store):
    """Opens the store and gives the collections of the default tenant; closes the one before."""
    last: list[SegmentStore] = []

    async def reopen(**options: Any) -> TenantCollections:
        for store in last:
            await store.stop()
        last[:] = [await open_store(**options)]
        return last[0].of(DEFAULT_TENANT)

    async def settled() -> None:
        await last[0].settled()

    async def close() -> None:
        await last.pop().stop()

    reopen.settled, reopen.close = settled, close
    return reopen


async def test_ingest_delete_describe(reopened, tmp_path: Path) -> None:
    store = await reopened()
    created = await store.create("c", "about things", Lexical("english", 0.9, 0.4))
    assert (created.num_passages, created.encoder, created.description) == (0, "", "about things")
    assert (created.analyzer, created.lexical) == ("english-snowball-1", Lexical("english", 0.9, 0.4))
    assert created.version.startswith("000001-")

    report = await store.ingest("c", passages("b", "a", "c"), create=False)
    assert (report.added, report.replaced, report.unchanged) == (3, 0, 0)
    assert [passage.id for passage in content(store)] == ["a", "b", "c"]  # by ascending id

    report = await store.ingest("c", [*passages("c", "d"), Passage("a", "new", "text")], create=True)
    assert (report.added, report.replaced, report.unchanged) == (1, 1, 1)
    assert content(store)[0] == Passage("a", "new", "text")
    assert report.collection == store.describe("c") == store.list()[0]
    assert report.collection.description == "about things"
    assert report.collection.version != created.version
    assert (report.collection.num_segments, report.collection.num_tombstones) == (2, 1)

    deletion = await store.delete_passages("c", ["b", "x", "d"])
    assert (deletion.deleted, deletion.missing, deletion.collection.num_passages) == (2, 1, 2)
    assert [passage.id for passage in content(store)] == ["a", "c"]

    await reopened.settled()  # what is more than a third gone is written anew
    described = store.describe("c")
    assert described.num_tombstones == 0
    on_disk = [path.stat().st_size for path in home(tmp_path).glob("segments/*/*")]
    version = home(tmp_path) / "versions" / f"{described.version}.json"
    assert described.size_bytes <= sum(on_disk) + version.stat().st_size


async def test_the_same_again_changes_nothing(reopened) -> None:
    store = await reopened()
    first = await store.ingest("c", passages("a", "b"), create=True)
    again = await store.ingest("c", passages("b", "a"), create=True)
    assert (again.added, again.replaced, again.unchanged) == (0, 0, 2)
    assert again.collection == first.collection
    assert (await store.delete_passages("c", ["x"])).collection == first.collection


async def test_what_was_acknowledged_is_there_after_a_restart(reopened) -> None:
    store = await reopened()
    await store.ingest("c", passages("a", "b"), create=True)
    await store.create("empty", "", Lexical())
    before = store.list()
    kept = content(store)
    store = await reopened()
    assert store.list() == before
    assert content(store) == kept
    assert content(store, "empty") == []


async def test_names_that_are_taken_or_unknown(reopened) -> None:
    store = await reopened()
    await store.create("c", "", Lexical())
    with pytest.raises(AlreadyExists, match="'c'") as taken:
        await store.create("c", "", Lexical())
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


async def test_drop(reopened, tmp_path: Path) -> None:
    store = await reopened()
    await store.ingest("c", passages("a"), create=True)
    with store.lease("c") as snapshot:
        await store.drop("c")
        assert store.list() == []
        assert snapshot.passages([0]) == passages("a")  # its readers read on
    assert list((tmp_path / "collections" / DEFAULT_TENANT).iterdir()) == []
    assert (await store.create("c", "anew", Lexical())).num_passages == 0


async def test_readers_keep_their_version_and_two_stay_on_disk(reopened, tmp_path: Path) -> None:
    store = await reopened()
    made = [(await store.ingest("c", passages("a"), create=True)).collection.version]
    with store.lease("c") as snapshot:
        for text in ("two", "three", "four"):
            made.append((await store.ingest("c", passages("a", text=text), create=False)).collection.version)
        assert snapshot.passages([0]) == passages("a")
        assert snapshot.info.version == made[0]
        await reopened.settled()
        assert versions(tmp_path) == [made[0], *made[2:]]
        assert len(list((home(tmp_path) / "segments").iterdir())) == 3
    await reopened.settled()
    assert versions(tmp_path) == made[2:]
    assert len(list((home(tmp_path) / "segments").iterdir())) == 2


def newest_segment(root: Path) -> Path:
    return max((home(root) / "segments").iterdir())


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("what", ["arrays.bin", "manifest.json", "version", "tombstones"])
async def test_a_corrupt_version_is_named_and_the_one_before_served(
    reopened, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, damage: str
) -> None:
    store = await reopened()
    first = await store.ingest("c", passages("a", "z"), create=True)
    second = await store.ingest("c", [*passages("b"), Passage("a", "", "new")], create=True)
    await reopened.close()
    folder = home(tmp_path)
    path = {
        "version": folder / "versions" / f"{second.collection.version}.json",
        "tombstones": next(folder.glob("versions/*.dead")),
    }.get(what, newest_segment(tmp_path) / what)
    spoil(path, damage)

    store = await reopened()
    described = store.describe("c")
    assert described.version == first.collection.version
    assert str(path) in caplog.text
    assert f"version {first.collection.version}, an earlier one, is served" in caplog.text
    assert str(path.relative_to(tmp_path / "collections")) in described.warning
    assert described.warning.endswith(f"version {first.collection.version} is served")
    assert content(store) == passages("a", "z")
    # The next version is a third one, and the sound one stays in case that goes bad too.
    third = await store.ingest("c", passages("c"), create=False)
    assert third.collection.version.startswith("000003-")
    assert third.collection.warning == ""
    assert [passage.id for passage in content(store)] == ["a", "c", "z"]
    assert versions(tmp_path) == [first.collection.version, third.collection.version]


def spoil(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


async def test_what_is_checked_while_it_serves_is_served_no_longer(
    reopened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await reopened()
    await store.ingest("c", passages("a", "b"), create=True)
    await store.ingest("sound", passages("a"), create=True)
    await reopened.close()
    spoil(newest_segment(tmp_path) / "arrays.bin", "flip")
    store = await reopened(verify_bytes=0)
    await reopened.settled()
    assert "does not have the SHA-256 of its manifest" in caplog.text
    with pytest.raises(FailedPrecondition, match=r"arrays\.bin does not have the SHA-256"):
        store.describe("c")
    assert [info.name for info in store.list()] == ["sound"]


async def test_a_collection_is_there_while_the_version_before_is_opened(
    reopened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await reopened()
    first = (await store.ingest("c", passages("a"), create=True)).collection.version
    second = (await store.ingest("c", passages("b"), create=False)).collection.version
    await reopened.close()
    spoil(newest_segment(tmp_path) / "arrays.bin", "flip")
    opened, seen = SegmentStore._open, []

    def noted(self: SegmentStore, *args: Any) -> Any:
        seen.extend(info.version for _, info in self.everyones())
        return opened(self, *args)

    monkeypatch.setattr(SegmentStore, "_open", noted)
    store = await reopened(verify_bytes=0)
    await reopened.settled()
    # Nothing when the store opens; then the version that was found corrupt, until it is replaced.
    assert seen == [second]
    assert store.describe("c").version == first
    assert content(store) == passages("a")


async def test_a_corrupt_collection_is_removed_once(reopened, tmp_path: Path) -> None:
    store = await reopened()
    await store.ingest("c", passages("a"), create=True)
    await reopened.close()
    for path in home(tmp_path).glob("versions/*.json"):
        spoil(path, "flip")
    store = await reopened()
    calls = [store.drop("c") for _ in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in outcomes] == [type(None), NotFound, NotFound]
    await store.ingest("c", passages("b"), create=True)
    assert content(store) == passages("b")


async def test_a_collection_without_a_sound_version(reopened, tmp_path: Path) -> None:
    store = await reopened()
    await store.ingest("c", passages("a"), create=True)
    await store.ingest("other", passages("a"), create=True)
    await reopened.close()
    spoil(newest_segment(tmp_path) / "arrays.bin", "flip")

    store = await reopened()
    assert [info.name for info in store.list()] == ["other"]
    for call in (store.describe, lambda name: store.lease(name).__enter__()):
        with pytest.raises(FailedPrecondition, match=r"arrays\.bin does not have the SHA-256") as corrupt:
            call("c")
        assert corrupt.value.reason == "COLLECTION_CORRUPT"
        assert str(tmp_path) not in corrupt.value.message
    with pytest.raises(FailedPrecondition):
        await store.ingest("c", passages("a"), create=True)
    with pytest.raises(AlreadyExists):
        await store.create("c", "", Lexical())
    await store.drop("c")
    assert (await store.ingest("c", passages("a"), create=True)).added == 1


@pytest.mark.parametrize("pointer", [b"", b"000009-0123456789ab", b"../../etc", b"\xff\xfe", None])
async def test_a_damaged_pointer(reopened, tmp_path: Path, pointer: bytes | None) -> None:
    store = await reopened()
    report = await store.ingest("c", passages("a"), create=True)
    await reopened.close()
    path = home(tmp_path) / "CURRENT"
    path.unlink() if pointer is None else path.write_bytes(pointer)
    store = await reopened()
    described = store.describe("c")
    assert described.version == report.collection.version
    assert described.warning
    assert (await store.ingest("c", passages("b"), create=False)).added == 1


async def test_a_version_of_another_collection_is_not_served(reopened, tmp_path: Path) -> None:
    store = await reopened()
    await store.ingest("c", passages("a"), create=True)
    await reopened.close()
    shutil.move(home(tmp_path), home(tmp_path, "d"))
    store = await reopened()
    assert store.list() == []
    with pytest.raises(FailedPrecondition, match="of collection 'c'"):
        store.describe("d")


async def test_a_format_of_the_future_is_named(reopened, tmp_path: Path) -> None:
    store = await reopened()
    report = await store.ingest("c", passages("a"), create=True)
    await reopened.close()
    path = home(tmp_path) / "versions" / f"{report.collection.version}.json"
    manifest = json.loads(path.read_bytes())
    manifest["format_version"] = 3
    path.write_text(json.dumps(manifest))
    renamed = f"000001-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    path.rename(path.with_name(f"{renamed}.json"))
    (home(tmp_path) / "CURRENT").write_text(renamed)
    store = await reopened()
    with pytest.raises(FailedPrecondition, match="a format that this version of evenmesh does not know"):
        store.describe("c")


async def test_leftovers_are_removed_and_never_served(reopened, tmp_path: Path) -> None:
    store = await reopened()
    report = await store.ingest("c", passages("a"), create=True)
    await reopened.close()
    folder = home(tmp_path)
    segment = newest_segment(tmp_path)
    version = folder / "versions" / f"{report.collection.version}.json"
    shutil.copytree(segment, segment.with_name(".build-123456"))
    shutil.copytree(segment, segment.with_name("000007-0123456789ab"))  # written, in no version
    shutil.copytree(segment, segment / ".partial-of-another-encoder")
    shutil.copy(version, version.with_name("000007-0123456789ab.json"))  # written, never made current
    shutil.copy(version, version.with_name("000007-0123456789ab.dead"))
    shutil.copytree(folder, folder.with_name(".old-123456"))
    store = await reopened()
    assert store.list() == [report.collection]
    assert [path.name for path in folder.parent.iterdir()] == ["c"]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "CURRENT",
        f"segments/{segment.name}/arrays.bin",
        f"segments/{segment.name}/manifest.json",
        f"versions/{version.name}",
    ]


async def test_one_store_per_folder(reopened, tmp_path: Path) -> None:
    await reopened()
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from evenmesh_retriever.analyzer import analyzer\n"
        "from evenmesh_retriever.backends.segments.store import SegmentStore\n"
        "from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing\n"
        "from evenmesh_retriever.ports import CannotStart\n"
        "store = SegmentStore(Path(sys.argv[1]), SegmentIndexing(analyzer, None), lambda _: None)\n"
        "try: asyncio.run(store.start())\n"
        "except CannotStart as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "collections")]
    reported = (
        await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    ).stdout
    assert reported.strip().splitlines() == [
        f"another retriever (process {os.getpid()}) keeps the collections in {tmp_path / 'collections'}: "
        "stop it, or set EVENMESH_HOME to another folder"
    ]
    await reopened.close()
    freed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert freed.stdout == ""


async def test_a_home_that_cannot_be_written(reopened, tmp_path: Path) -> None:
    (tmp_path / "collections").write_text("not a folder")
    with pytest.raises(CannotStart, match="set EVENMESH_HOME to a folder that can be written"):
        await reopened()


async def test_a_full_disk_keeps_nothing(reopened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await reopened()
    report = await store.ingest("c", passages("a"), create=True)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(arrays.os, "fsync", full)
    for write in (
        store.ingest("c", passages("b"), create=False),
        store.delete_passages("c", ["a"]),
        store.create("d", "", Lexical()),
    ):
        with pytest.raises(MeshError, match="nothing was kept") as error:
            await write
        assert (error.value.code, error.value.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "STORAGE_FULL",
        )
    monkeypatch.undo()
    assert store.list() == [report.collection]
    assert versions(tmp_path) == [report.collection.version]
    assert len(list((home(tmp_path) / "segments").iterdir())) == 1
    assert (await store.ingest("c", passages("b"), create=False)).added == 1


async def test_a_merge_that_finds_the_disk_full_is_tried_again(
    reopened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await reopened()
    for one in "abc":
        await store.ingest("c", passages(one), create=True)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("evenmesh_retriever.backends.segments.building.merge.write", full)
    await store.ingest("c", passages("d"), create=True)
    await reopened.settled()
    assert "were not merged" in caplog.text
    assert store.describe("c").num_segments == 4
    monkeypatch.undo()
    await store.ingest("c", passages("e"), create=True)
    await reopened.settled()
    assert store.describe("c").num_segments == 1
    assert [passage.id for passage in content(store)] == ["a", "b", "c", "d", "e"]


async def test_a_write_whose_caller_goes_away_leaves_nothing(reopened, tmp_path: Path) -> None:
    building, may_go_on = Event(), Event()

    class Slow:
        """An analyzer that waits for the test."""

        name = "slow"

        def tokens(self, text: str) -> list[str]:
            if text.endswith(" b"):
                building.set()
                assert may_go_on.wait(60)
            return text.split()

    store = await reopened(analyzer=lambda _: Slow())
    report = await store.ingest("c", passages("a"), create=True)
    ingest = asyncio.create_task(store.ingest("c", passages("b", "c"), create=False))
    await asyncio.to_thread(building.wait, 60)
    ingest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ingest
    may_go_on.set()
    await reopened.settled()
    assert store.describe("c") == report.collection
    assert versions(tmp_path) == [report.collection.version]
    assert len(list((home(tmp_path) / "segments").iterdir())) == 1

    building.clear()
    may_go_on.clear()
    ingest = asyncio.create_task(store.ingest("c", passages("b", "c"), create=False))
    await asyncio.to_thread(building.wait, 60)
    stop = asyncio.create_task(reopened.close())
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(Unavailable, match="nothing was kept"):
        await ingest
    await stop
    assert [info.version for info in (await reopened()).list()] == [report.collection.version]


async def test_writers_take_turns_and_readers_see_whole_versions(reopened) -> None:
    store = await reopened()
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
                found = await asyncio.to_thread(lambda s=snapshot: s.passages(s.rows().tolist()))
            seen.append((snapshot.info.version, {passage.text.split()[0] for passage in found}))
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read()) for _ in range(4)]
    await asyncio.gather(*(write(f"text{number}") for number in range(8)))
    done.set()
    await asyncio.gather(*readers)
    assert len({version for version, _ in seen}) > 1
    assert all(len(texts) == 1 for _, texts in seen)  # never a mixture
    assert all(texts == {texts_of[version]} for version, texts in seen if version in texts_of)


async def test_segments_are_merged_in_the_background(reopened, tmp_path: Path) -> None:
    store = await reopened()
    for number in range(40):
        await store.ingest("c", passages(f"p{number:02}"), create=True)
    await reopened.settled()
    described = store.describe("c")
    assert described.num_passages == 40
    assert described.num_segments <= 4
    assert [passage.id for passage in content(store)] == [f"p{number:02}" for number in range(40)]
    # What is more than three tenths gone is written anew, and what is wholly gone leaves at once.
    await store.delete_passages("c", [f"p{number:02}" for number in range(39)])
    await reopened.settled()
    described = store.describe("c")
    assert (described.num_segments, described.num_tombstones, described.num_passages) == (1, 0, 1)
    await store.delete_passages("c", ["p39"])
    await reopened.settled()
    described = store.describe("c")
    assert (described.num_segments, described.num_passages) == (0, 0)
    # The next write ends the life of the last segment on disk.
    await store.ingest("c", passages("x"), create=True)
    assert len(list((home(tmp_path) / "segments").iterdir())) == 1


@pytest.fixture
def held_merges(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Set when a merge begins, and what it waits for."""
    merging, may_go_on = Event(), Event()
    real = merge.write

    def slow(*args: Any) -> Any:
        merging.set()
        assert may_go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(merge, "write", slow)
    return merging, may_go_on


async def test_what_happens_during_a_merge_is_kept(reopened, held_merges: tuple[Event, Event]) -> None:
    merging, may_go_on = held_merges
    store = await reopened()
    for one in "abcd":
        await store.ingest("c", passages(one, one + one), create=True)
    await asyncio.to_thread(merging.wait, 60)
    await store.delete_passages("c", ["a", "b", "bb"])  # all of one segment, half of another
    await store.ingest("c", [Passage("cc", "", "changed"), *passages("e")], create=False)
    may_go_on.set()
    await reopened.settled()
    assert {p.id: p.text for p in content(store)} == {
        "aa": "text of aa",
        "c": "text of c",
        "cc": "changed",
        "d": "text of d",
        "dd": "text of dd",
        "e": "text of e",
    }
    store = await reopened()
    assert len(content(store)) == 6


async def test_a_collection_dropped_during_a_merge_is_gone(
    reopened, tmp_path: Path, held_merges: tuple[Event, Event]
) -> None:
    merging, may_go_on = held_merges
    store = await reopened()
    for one in "abcd":
        await store.ingest("c", passages(one), create=True)
    await asyncio.to_thread(merging.wait, 60)
    await store.drop("c")
    made = await store.ingest("c", passages("new"), create=True)
    may_go_on.set()
    await reopened.settled()
    assert store.list() == [made.collection]
    assert content(store) == passages("new")
    assert [path.name for path in home(tmp_path).parent.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("quota", "setting", "what"),
    [
        ("collection_passages", "S_CP", "collection 'c' would hold 3 passages and may hold 2"),
        ("tenant_passages", "S_TP", "the tenant would hold 4 passages and may hold 2"),
        ("collection_bytes", "S_CB", "collection 'c' would hold 32 bytes of passages and may hold 31"),
        ("tenant_bytes", "S_TB", "the tenant would hold 42 bytes of passages and may hold 31"),
    ],
)
async def test_quotas_name_the_setting(reopened, quota: str, setting: str, what: str) -> None:
    most = 2 if quota.endswith("passages") else 31
    store = await reopened(quotas=Quotas(**{quota: Limit(most, setting)}))
    if quota.startswith("tenant"):
        await store.ingest("other", passages("a"), create=True)
    await store.ingest("c", passages("a"), create=True)
    more = [*passages("b"), Passage("c", "", "text of the")]
    with pytest.raises(MeshError) as refused:
        await store.ingest("c", more, create=True)
    assert (refused.value.code, refused.value.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUOTA_EXCEEDED",
    )
    assert refused.value.message == f"{what}: nothing was kept; delete some, or raise {setting}"
    assert content(store) == passages("a")
    # What replaces, and what is gone, does not count twice.
    assert (await store.ingest("c", [Passage("a", "", "text_of a")], create=False)).replaced == 1
    await store.delete_passages("c", ["a"])
    assert (await store.ingest("c", passages("b"), create=False)).added == 1


async def test_tenants_see_their_own(open_store, tmp_path: Path) -> None:
    store = await open_store()
    one, other = store.of("one"), store.of("other")
    await one.ingest("c", passages("a"), create=True)
    await other.ingest("c", passages("b"), create=True)
    assert content(one) == passages("a")
    assert content(other) == passages("b")
    await one.drop("c")
    assert one.list() == []
    assert [info.name for info in other.list()] == ["c"]
    with pytest.raises(NotFound):
        one.describe("c")


async def test_an_unknown_analyzer(reopened) -> None:
    store = await reopened()
    with pytest.raises(InvalidField, match="must be one of unicode, whitespace, english, got 'latin'"):
        await store.create("c", "", Lexical("latin"))
    assert store.list() == []
