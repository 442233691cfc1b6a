"""More collections than file descriptors, bounds on their number, and who may read their files."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from evenmesh.wire.errors import MeshError
from evenmesh_retriever.backends.segments.files.mapping import load, mapped
from evenmesh_retriever.backends.segments.quotas import Limit, Quotas
from evenmesh_retriever.domain import Lexical, Passage
from evenmesh_retriever.ports import CannotStart

DESCRIPTORS, COLLECTIONS = 64, 90
SCRIPT = f"""
import asyncio, resource, sys
from pathlib import Path
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Passage
from tests.unit.retriever.backends.segments.living import recipe

async def main():
    # Large enough to be mapped: the text of a collection has 300 kB.
    passages = [Passage(f"p{{n}}", "", f"{{n}} " + "word " * 12_000) for n in range(5)]
    store = SegmentStore(Path(sys.argv[1]), recipe(), lambda _: None)
    await store.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
    for number in range({COLLECTIONS}):
        await store.of("loud").ingest(f"c{{number}}", passages[:3], create=True)
        await store.of("loud").ingest(f"c{{number}}", passages[3:], create=False)
    await store.of("quiet").ingest("mine", passages, create=True)
    await store.settled()
    for tenant, name in [("quiet", "mine"), *(("loud", f"c{{n}}") for n in range({COLLECTIONS}))]:
        with store.of(tenant).lease(name) as snapshot:
            assert len(snapshot.passages_of([one.id for one in passages])) == 5
            assert all(view.dense.vectors.any() for view in snapshot.views)
    await store.stop()
    print("served")

asyncio.run(main())
"""


@pytest.mark.slow
def test_there_may_be_more_collections_than_descriptors(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "collections")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[5],
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr


@pytest.mark.parametrize("size", [10, 2**18])
def test_a_mapped_file_holds_no_descriptor_and_cannot_be_written(tmp_path: Path, size: int) -> None:
    content = np.arange(size, dtype=np.float32).reshape(-1, 2)
    np.save(tmp_path / "a.npy", content)
    before = len(list(Path("/proc/self/fd").iterdir()))
    arrays = [load(tmp_path / "a.npy") for _ in range(5)]
    raw = mapped(tmp_path / "a.npy")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (tmp_path / "a.npy").unlink()
    for array in arrays:
        np.testing.assert_array_equal(array, content)
        assert not array.flags.writeable
    assert raw[:6].tobytes() == b"\x93NUMPY"
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 1


async def test_the_number_of_collections_is_bounded_by_tenant_and_in_all(open_store: Any) -> None:
    quotas = Quotas(tenant_collections=Limit(2, "TENANT_SETTING"), collections=Limit(3, "SETTING"))
    store = await open_store(quotas=quotas)
    loud, quiet = store.of("loud"), store.of("quiet")
    await loud.create("a", "", Lexical())
    await loud.ingest("b", [Passage("p", "", "x")], create=True)
    with pytest.raises(MeshError, match=r"has 2 collections and may have 2.*TENANT_SETTING") as refused:
        await loud.create("c", "", Lexical())
    assert refused.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(MeshError, match="TENANT_SETTING"):
        await loud.ingest("c", [Passage("p", "", "x")], create=True)
    assert (await loud.ingest("b", [Passage("q", "", "x")], create=True)).added == 1
    await quiet.create("mine", "", Lexical())
    with pytest.raises(MeshError, match="no more collections: raise SETTING"):
        await quiet.create("another", "", Lexical())
    await loud.drop("a")
    await quiet.create("another", "", Lexical())
    assert [one.name for one in quiet.list()] == ["another", "mine"]


async def test_only_the_owner_may_enter_the_folder_of_collections(open_store: Any, tmp_path: Path) -> None:
    root = tmp_path / "collections"
    root.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        store = await open_store()
        await store.of("t").create("a", "", Lexical())
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / ".lock").stat().st_mode & 0o777 == 0o600


async def test_a_start_does_not_make_the_folder_of_collections_writable(
    open_store: Any, tmp_path: Path
) -> None:
    root = tmp_path / "collections"
    root.mkdir()
    root.chmod(0o555)
    try:
        with suppress(CannotStart):  # unless the user is root, who may write everywhere
            await open_store()
        assert root.stat().st_mode & 0o777 == 0o500
    finally:
        root.chmod(0o700)
