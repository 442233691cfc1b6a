"""The contract of what keeps model versions: a folder, and buckets of several kinds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import bucket as bucket_module
from evenmesh_reranker.models.bucket import BucketStore
from evenmesh_reranker.models.manifest import FILE, Kind, Lineage, ManifestError, StoreAwayError
from evenmesh_reranker.models.ports import VersionStore
from evenmesh_reranker.models.store import ModelStore
from tests.support import s3_server

fsspec = pytest.importorskip("fsspec")

ANN = Agent("qa", "ann")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Place:
    """A place that several processes keep versions in, and a clock for all of them."""

    def __init__(self, open_store: Callable[[Place, str], VersionStore], address: str) -> None:
        self._open = open_store
        self.address = address
        self.now = NOON

    def opened(self, process: str = "one") -> VersionStore:
        return self._open(self, process)

    def put(self, version: str, name: str, content: bytes) -> None:
        """Replace a file of a version."""
        system, path = bucket_module._opened(self.address)
        with system.open(f"{path}/versions/{version}/{name}", "wb") as stream:
            stream.write(content)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server.s3_server() as address:
        s3_server.put(f"{address}/versions-of-a-test", b"")
        yield address


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "folder":
        return Place(
            lambda here, _: ModelStore(tmp_path / "there", clock=lambda: here.now), f"{tmp_path}/there"
        )
    address = f"memory://{secrets.token_hex(8)}/models"
    if request.param == "s3":
        pytest.importorskip("pyarrow.fs")
        endpoint = request.getfixturevalue("s3")
        for name, value in {**s3_server.ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        address = f"s3://versions-of-a-test/{secrets.token_hex(8)}"

    def opened(here: Place, process: str) -> BucketStore:
        return BucketStore(address, tmp_path / process, local_bytes=10_000, clock=lambda: here.now)

    return Place(opened, address)


def _write(store: VersionStore, content: bytes = b"weights", **lineage: Any) -> str:
    with store.write(Lineage(**{"provenance": "by hand", **lineage})) as draft:
        (draft.folder / "model.safetensors").write_bytes(content)
        (draft.folder / "config.json").write_text("{}")
        draft.tokens = ("[unk-task]", "[task:qa]")
    return draft.version


def test_what_one_process_writes_another_finds_whole(place: Place) -> None:
    writes, reads = place.opened("one"), place.opened("two")
    assert reads.manifests({}) == {}
    first = _write(writes)
    lineage = Lineage("online-ium", first, ANN, Kind.ADAPTER, first, {"utility": 0.5, "tau": None})
    with writes.write(lineage) as draft:
        (draft.folder / "adapter.safetensors").write_bytes(b"x")
    assert set(reads.manifests({})) == {first, draft.version}
    assert reads.has(first)
    assert not reads.has("0" * 16)
    assert not reads.has("../" + first)
    folder, manifest = reads.verified(draft.version)
    assert (manifest.lineage, manifest.created_at, manifest.size) == (lineage, NOON, 1)
    assert (folder / "adapter.safetensors").read_bytes() == b"x"
    assert reads.manifest(first).tokens == ("[task:qa]", "[unk-task]")


def test_weights_of_several_parts_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow.fs")
    weights = secrets.token_bytes(24 * 2**20)  # pyarrow sends parts of 10 MiB
    with s3_server.parts_server(tmp_path / "objects", "models") as endpoint:
        for name, value in {**s3_server.PARTS_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        first, second = (
            BucketStore("s3://models/here", tmp_path / name, local_bytes=2**30) for name in ("one", "two")
        )
        folder, manifest = second.verified(_write(first, weights))
    assert manifest.size == len(weights) + len("{}")
    assert (folder / "model.safetensors").read_bytes() == weights


def test_the_same_is_one_version_whoever_writes_it(place: Place) -> None:
    first = _write(place.opened("one"))
    place.now += timedelta(hours=1)
    assert _write(place.opened("two")) == first
    assert place.opened("one").manifest(first).created_at == NOON
    assert len({first, _write(place.opened(), b"others"), _write(place.opened(), provenance="another")}) == 3


def test_nothing_is_there_of_what_fails(place: Place) -> None:
    store = place.opened()
    with pytest.raises(RuntimeError, match="the disk"), store.write(Lineage("x")) as draft:
        (draft.folder / "a").write_bytes(b"half")
        raise RuntimeError("the disk")
    with pytest.raises(ManifestError, match="a version needs files"), store.write(Lineage("x")):
        pass
    assert store.manifests({}) == {}


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"weigh", "model.safetensors has 5 bytes and should have 7"),
        ("model.safetensors", b"weightz", "model.safetensors is damaged"),
        (FILE, b"{", "cannot be understood"),
    ],
)
def test_damage_is_named_and_seen(place: Place, used: bool, name: str, content: bytes, said: str) -> None:
    store = place.opened()
    version = _write(store)
    if used:
        store.verified(version)
    before = store.state(version)
    place.put(version, name, content)
    if used and place.address.startswith(("memory", "s3")) and name != FILE:
        store.verified(version)  # what was fetched is whole
        store = place.opened("another")
    with pytest.raises(ManifestError, match=said):
        store.verified(version)
    assert name != FILE or store.state(version) != before
    assert store.has(version)


def test_a_version_that_nothing_needs_is_marked_until_somebody_does(place: Place) -> None:
    one, two = place.opened("one"), place.opened("two")
    version = _write(one)
    assert one.mark(version) == timedelta(0)
    place.now += timedelta(minutes=20)
    assert two.mark(version) == timedelta(minutes=20)
    assert two.marks() == {version: NOON}
    two.verified(version)
    assert one.marks() == {}
    one.unmark(version)
    assert one.mark(version) == timedelta(0)
    assert _write(two) == version
    assert one.marks() == {}


def test_what_is_removed_is_gone_for_all_and_can_be_written_again(place: Place) -> None:
    one, two = place.opened("one"), place.opened("two")
    version = _write(one)
    two.verified(version)
    before = two.state(version)
    one.mark(version)
    assert [one.remove(version), two.remove(version)] == [True, False]
    assert not two.has(version)
    assert (two.state(version), bool(before), one.marks(), two.manifests({})) == ((), True, {}, {})
    with pytest.raises(ManifestError, match="cannot be read"):
        two.verified(version)
    assert _write(two) == version
    assert one.verified(version)[1].version == version


@pytest.fixture
def bucket(tmp_path: Path) -> Callable[..., BucketStore]:
    """Opens a bucket in memory as another process does."""
    address = f"memory://{secrets.token_hex(8)}"

    def opened(process: str = "one", local_bytes: int = 10_000) -> BucketStore:
        return BucketStore(address, tmp_path / process, local_bytes=local_bytes)

    opened.address = address  # type: ignore[attr-defined]
    return opened


def test_the_local_folder_keeps_what_was_used_last(
    bucket: Callable[..., BucketStore], tmp_path: Path
) -> None:
    store = bucket("two", local_bytes=5_000)
    versions = [_write(bucket(), bytes([at]) * 1_000) for at in range(7)]
    for version in versions:
        store.verified(version)
    local = {path.name for path in (tmp_path / "two").iterdir()} - {"incoming"}
    assert local == set(versions[-4:])  # each has two bytes more
    small = bucket("three", local_bytes=1_500)
    for version in versions:
        small.verified(version)
    assert {path.name for path in (tmp_path / "three").iterdir()} - {"incoming"} == set(versions[-3:])
    with pytest.raises(ManifestError, match="1,002 bytes; at most 1,001 are fetched"):
        bucket("four", local_bytes=1_001).verified(versions[0])


def test_a_local_copy_that_was_damaged_is_fetched_again(bucket: Callable[..., BucketStore]) -> None:
    store = bucket()
    version = _write(store)
    folder, _ = store.verified(version)
    (folder / "config.json").write_text("{1}")
    assert (store.verified(version)[0] / "config.json").read_text() == "{}"


def test_what_was_fetched_serves_while_the_bucket_is_away(
    bucket: Callable[..., BucketStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket()
    version, other = _write(store), _write(store, b"others")
    folder, _ = store.verified(version)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("http://key:secret@away")

    for name in ("info", "ls", "open"):
        monkeypatch.setitem(vars(store._system), name, away)
    assert store.verified(version)[0] == folder
    assert store.state(version) is None
    for use in (store.has, store.manifest, store.verified, store.mark, store.remove):
        with pytest.raises(StoreAwayError, match=r"cannot be used now \(ConnectionError\)$"):
            use(other)  # type: ignore[operator]
    with pytest.raises(StoreAwayError):
        store.manifests({})


@pytest.mark.parametrize("name", ["../out", "/etc/out", "..", "a/b", FILE])
def test_no_name_leads_out_of_the_folder(
    bucket: Callable[..., BucketStore], tmp_path: Path, name: str
) -> None:
    store = bucket()
    version = _write(store)
    path = f"{bucket.address}/versions/{version}/{FILE}"  # type: ignore[attr-defined]
    with fsspec.open(path, "rb") as stream:
        content = stream.read()
    with fsspec.open(path, "wb") as stream:
        stream.write(content.replace(b'"config.json"', f'"{name}"'.encode()))
    with pytest.raises(ManifestError, match="is no name of a file"):
        store.verified(version)


def test_what_a_dead_process_left_is_removed_after_a_day(bucket: Callable[..., BucketStore]) -> None:
    store = bucket()
    version, half = _write(store), _write(store, b"half")
    store._system.rm_file(store._manifest_of(half))
    store.tidy()
    left = f"{store._versions}/{half}/config.json"
    assert store._system.exists(left)
    store._clock = lambda: datetime.now(UTC) + timedelta(days=2)
    store.tidy()
    assert not store._system.exists(left)
    assert set(store.manifests({})) == {version}


def test_half_a_version_is_written_again(bucket: Callable[..., BucketStore]) -> None:
    store = bucket()
    version = _write(store)
    store._system.rm_file(f"{store._versions}/{version}/config.json")
    with pytest.raises(ManifestError, match=r"config\.json is missing"):
        store.verified(version)
    assert _write(bucket("two")) == version
    store.verified(version)


def test_an_address_that_nothing_reads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        BucketStore("nothing://here", tmp_path, local_bytes=1)
