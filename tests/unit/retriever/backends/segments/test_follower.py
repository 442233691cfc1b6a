"""A read replica: what it serves while another process writes, merges, removes and damages."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evenmesh.wire.errors import FailedPrecondition, NotFound, Unavailable
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.backends.segments.files.dense import DensePart
from evenmesh_retriever.backends.segments.follower import (
    Following,
    FollowingStore,
)
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Lexical, Passage
from evenmesh_retriever.ports import Snapshot, TenantCollections
from tests.support.waiting import until
from tests.unit.retriever.backends.segments.living import recipe

NEVER = 3600.0


def some(*ids: str, text: str = "text of") -> list[Passage]:
    return [Passage(one, "", f"{text} {one}") for one in ids]


def content(collections: TenantCollections, name: str = "c") -> dict[str, str]:
    with collections.lease(name) as snapshot:
        return texts(snapshot)


def texts(snapshot: Snapshot) -> dict[str, str]:
    assert isinstance(snapshot, SegmentSnapshot)
    return {one.id: one.text for one in snapshot.passages(snapshot.rows().tolist())}


@asynccontextmanager
async def following(
    root: Path,
    prepare: Callable[[SegmentSnapshot], None] = lambda _: None,
    on_fresh: Callable[[bool], None] = lambda _: None,
    **options: float,
) -> AsyncIterator[FollowingStore]:
    """A replica that looks when the test says so."""
    options = {"look_s": NEVER, "stale_s": NEVER, **options}
    store = FollowingStore(root, recipe(), prepare, Following(**options), on_fresh)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    return tmp_path / "collections"


@pytest.fixture
async def writer(root: Path) -> AsyncIterator[SegmentStore]:
    store = SegmentStore(root, recipe(), lambda _: None)
    await store.start()
    yield store
    await store.stop()


@pytest.fixture
def mine(writer: SegmentStore) -> TenantCollections:
    return writer.of(DEFAULT_TENANT)


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its time of change, but what the writer's lease beats."""
    paths = [path for path in root.rglob("*") if path.name not in ("beats",)]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


async def test_it_serves_what_the_writer_has_and_writes_nothing(
    writer: SegmentStore, mine: TenantCollections, root: Path
) -> None:
    await mine.create("empty", "about nothing", Lexical("unicode", 0.9, 0.4))
    await mine.ingest("c", some("a", "b"), create=True)
    await writer.settled()
    before = tree(root)
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        assert content(replica) == content(mine)
        began = datetime.now(UTC)
        await store.look()
        for found, own in zip(replica.list(), mine.list(), strict=True):
            assert found.as_of is not None
            assert found.as_of >= began
            assert own.as_of is None
            assert {**vars_of(found), "as_of": None} == vars_of(own)
        assert replica.describe("c").version == mine.describe("c").version
        assert store.of("another").list() == []
        for write in (
            replica.create("d", "", Lexical()),
            replica.ingest("c", some("x"), create=True),
            replica.delete_passages("c", ["a"]),
            replica.drop("c"),
        ):
            with pytest.raises(FailedPrecondition, match="send this to the one that keeps") as error:
                await write
            assert error.value.reason == "READ_ONLY_REPLICA"
        with pytest.raises(NotFound):
            replica.describe("none")
    assert tree(root) == before


def vars_of(info: object) -> dict[str, object]:
    return asdict(info)


async def test_changes_appear_at_the_next_look_whole(
    writer: SegmentStore, mine: TenantCollections, root: Path
) -> None:
    await mine.ingest("c", some("a", "b"), create=True)
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        first = mine.describe("c").version
        with replica.lease("c") as held:
            await mine.ingest("c", some("b", "c", text="new"), create=False)
            await mine.ingest("d", some("x"), create=True)
            assert content(replica) == {"a": "text of a", "b": "text of b"}
            assert replica.describe("c").version == first
            written = mine.describe("c").version
            await store.look()
            assert content(replica) == content(mine)
            assert content(replica, "d") == {"x": "text of x"}
            # The number at the begin of a version grows, also where the writer merges segments meanwhile.
            assert first < written <= replica.describe("c").version <= mine.describe("c").version
            await mine.drop("c")
            await store.look()
            with pytest.raises(NotFound):
                replica.describe("c")
            assert [info.name for info in replica.list()] == ["d"]
            # Of a version that is gone from the disk, too.
            assert texts(held) == {"a": "text of a", "b": "text of b"}
        await mine.ingest("c", some("z"), create=True)
        await store.look()
        assert content(replica) == {"z": "text of z"}


async def test_segments_and_vectors_that_stay_are_not_opened_again(
    mine: TenantCollections, root: Path
) -> None:
    await mine.ingest("c", some("a", "b"), create=True)
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)

        def opened() -> dict[str, tuple[int, DensePart | None]]:
            with replica.lease("c") as snapshot:
                assert isinstance(snapshot, SegmentSnapshot)
                return {view.segment.name: (id(view.segment), view.dense) for view in snapshot.views}

        before = opened()
        assert all(part is not None for _, part in before.values())
        await mine.ingest("c", some("c"), create=False)
        await store.look()
        assert before.items() < opened().items()


async def test_merges_under_it(writer: SegmentStore, mine: TenantCollections, root: Path) -> None:
    await mine.ingest("c", some("p"), create=True)
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        for number in range(6):
            with replica.lease("c") as held:
                was = texts(held)
                await mine.ingest("c", some(f"p{number}"), create=False)
                await mine.delete_passages("c", [f"p{number - 2}"])
                await writer.settled()  # what was merged is gone from the disk
                assert texts(held) == was
            await store.look()
            assert content(replica) == content(mine)
            assert replica.describe("c").num_segments == mine.describe("c").num_segments


async def test_a_version_that_is_replaced_while_it_is_opened(
    writer: SegmentStore, mine: TenantCollections, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await mine.ingest("c", some("a"), create=True)
    loop = asyncio.get_running_loop()
    late = 0

    async def write() -> None:
        for number in range(2):  # two, so that the files of the first are gone
            await mine.ingest("c", some("a", text=f"{late} {number}"), create=False)
        await writer.settled()

    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        directory_manifest = store._directory((DEFAULT_TENANT, "c")).__class__.manifest

        def manifest(self: object, version: object) -> object:
            nonlocal late
            if late < 2:
                late += 1
                asyncio.run_coroutine_threadsafe(write(), loop).result(60)
            return directory_manifest(self, version)

        await mine.ingest("c", some("b"), create=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("evenmesh_retriever.backends.segments.follower.SegmentDirectory.manifest", manifest)
            # The writer reads manifests only when it starts.
            await store.look()
        assert late == 2
        assert content(replica) == content(mine)
        assert replica.describe("c").warning == ""
        assert "is not followed" not in caplog.text


@pytest.mark.parametrize("what", ["segment", "manifest", "pointer", "gone"])
async def test_what_is_damaged_is_not_served_and_the_version_before_is(
    writer: SegmentStore, mine: TenantCollections, root: Path, what: str
) -> None:
    await mine.ingest("c", some("a"), create=True)
    await mine.ingest("d", some("a"), create=True)
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        good = replica.describe("c")
        await mine.ingest("c", some("b"), create=False)
        await mine.ingest("d", some("b"), create=False)
        folder = root / DEFAULT_TENANT / "c"
        newest = sorted((folder / "segments").glob("0*"))[-1] / "arrays.bin"
        damaged = {
            "segment": newest,
            "gone": newest,
            "manifest": sorted((folder / "versions").glob("*.json"))[-1],
            "pointer": folder / "CURRENT",
        }[what]
        whole = damaged.read_bytes()
        if what == "gone":
            damaged.unlink()
        else:
            damaged.write_bytes(bytes([whole[0] ^ 64]) + whole[1:])
        for _ in range(2):
            await store.look()
            described = replica.describe("c")
            assert content(replica) == {"a": "text of a"}
            assert described.version == good.version
            assert damaged.name in described.warning
            assert str(root) not in described.warning
            assert f"version {good.version} is served" in described.warning
            assert described.as_of is not None
            assert described.as_of <= good.as_of  # not since
            assert content(replica, "d") == content(mine, "d")  # no other collection suffers
            assert dict(store.lags()) == {(DEFAULT_TENANT, "c"): 1, (DEFAULT_TENANT, "d"): 0}
        # The next version is whole.
        damaged.write_bytes(whole)
        await mine.ingest("c", some("e"), create=False)
        await store.look()
        assert content(replica) == content(mine)
        assert replica.describe("c").warning == ""
        assert dict(store.lags())[DEFAULT_TENANT, "c"] == 0


async def test_a_start_beside_damage(mine: TenantCollections, root: Path) -> None:
    for name in ("c", "d"):
        await mine.ingest(name, some("a"), create=True)
    await mine.ingest("c", some("b"), create=False)
    for name in ("c", "d"):
        segments = root / DEFAULT_TENANT / name / "segments"
        newest = sorted(segments.iterdir())[-1] / "arrays.bin"
        newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        assert content(replica) == {"a": "text of a"}  # the version before
        assert "arrays.bin" in replica.describe("c").warning
        with pytest.raises(FailedPrecondition, match=r"arrays\.bin") as error:  # there is none before
            replica.describe("d")
        assert error.value.reason == "COLLECTION_CORRUPT"
        assert [info.name for info in replica.list()] == ["c"]
        assert all(lag >= 1 for _, lag in store.lags())


async def test_large_files_are_checked_while_they_serve(mine: TenantCollections, root: Path) -> None:
    await mine.ingest("c", some("a"), create=True)
    await mine.ingest("c", some("b"), create=False)
    newest = sorted((root / DEFAULT_TENANT / "c" / "segments").iterdir())[-1] / "arrays.bin"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    async with following(root, verify_bytes=0) as store:
        replica = store.of(DEFAULT_TENANT)
        await until(lambda: replica.describe("c").warning != "")
        assert content(replica) == {"a": "text of a"}
        await store.look()
        assert content(replica) == {"a": "text of a"}


async def test_an_empty_folder_and_one_that_comes_later(tmp_path: Path) -> None:
    root = tmp_path / "home" / "collections"
    async with following(root) as store:
        replica = store.of(DEFAULT_TENANT)
        await store.look()
        assert replica.list() == []
        assert not root.exists()
        writer = SegmentStore(root, recipe(), lambda _: None)
        await writer.start()
        await store.look()
        assert replica.list() == []
        await writer.of(DEFAULT_TENANT).ingest("c", some("a"), create=True)
        await store.look()
        assert content(replica) == {"a": "text of a"}
        await writer.stop()


async def test_a_volume_that_is_away_takes_no_collection_with_it(mine: TenantCollections, root: Path) -> None:
    await mine.ingest("c", some("a"), create=True)
    states: list[bool] = []
    async with following(root, on_fresh=states.append, look_s=0.01, stale_s=1.0) as store:
        replica = store.of(DEFAULT_TENANT)
        away = root.with_name("away")
        os.rename(root, away)  # noqa: PTH104
        os.mkdir(root)  # noqa: PTH102 - where it was mounted
        await until(lambda: states == [False])
        assert content(replica) == {"a": "text of a"}
        assert store.age_s > 1.0
        os.rmdir(root)  # noqa: PTH106
        os.rename(away, root)  # noqa: PTH104
        await until(lambda: states == [False, True])
        assert store.age_s < 60


async def test_it_follows_by_itself(mine: TenantCollections, root: Path) -> None:
    async with following(root, look_s=0.01) as store:
        replica = store.of(DEFAULT_TENANT)
        await mine.ingest("c", some("a"), create=True)
        await until(lambda: [info.version for info in replica.list()] == [mine.describe("c").version])


async def test_a_tenant_whose_versions_take_long_to_open_delays_no_other(
    writer: SegmentStore, root: Path
) -> None:
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def prepare(snapshot: SegmentSnapshot) -> None:
        if snapshot.manifest.tenant == "slow":
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(60)

    async with following(root, prepare, look_s=0.01) as store:
        for name in ("c", "d"):
            await writer.of("slow").ingest(name, some("a"), create=True)
        for number in range(3):
            await writer.of("quick").ingest("c", some(f"a{number}"), create=True)
            await until(lambda: [one.version for one in store.of("quick").list()]
                        == [writer.of("quick").describe("c").version])  # fmt: skip
        assert store.of("slow").list() == []
        go.set()
        await until(lambda: len(store.of("slow").list()) == 2)


async def test_reading_ends_before_files_go_where_they_do(mine: TenantCollections, root: Path) -> None:
    await mine.ingest("c", some("a", "b"), create=True)
    async with following(root, keep_s=0.02) as store:
        with store.of(DEFAULT_TENANT).lease("c") as snapshot:
            pages = snapshot.pages(1)
            assert next(pages)
            await mine.ingest("c", some("c"), create=False)
            await store.look()
            await until(lambda: time.monotonic() > snapshot.ends)
            with pytest.raises(Unavailable, match="was replaced while it was read") as error:
                next(pages)
            assert error.value.reason == "VERSION_GONE"
        assert len(content(store.of(DEFAULT_TENANT))) == 3


async def test_a_collection_of_another_machine_s_copy(mine: TenantCollections, root: Path) -> None:
    """One that was made anew under its name, with the same version, is opened from where it is now."""
    await mine.ingest("c", some("a"), create=True)
    folder = root / DEFAULT_TENANT / "c"
    async with following(root) as store:
        with store.of(DEFAULT_TENANT).lease("c") as before:
            pass
        shutil.copytree(folder, folder.with_name(".copy"))
        shutil.rmtree(folder)
        os.rename(folder.with_name(".copy"), folder)  # noqa: PTH104
        await store.look()
        with store.of(DEFAULT_TENANT).lease("c") as after:
            assert after is not before
            assert texts(after) == texts(before)
