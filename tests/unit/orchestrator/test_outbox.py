"""The outbox: order, idempotency, capacity, and what survives."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_orchestrator.observations.outbox import Outbox
from evenmesh_orchestrator.observations.shares import DynamicShares
from tests.support.programs import required


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    """An open, empty outbox."""
    outbox = Outbox(tmp_path / "deep" / "outbox.db", capacity=100)
    await outbox.open()
    yield outbox
    await outbox.close()


async def _ids(outbox: Outbox, after: int = 0) -> list[str]:
    return [entry.id for entry in await outbox.waiting(DEFAULT_TENANT, after=after, limit=1000)]


async def test_entries_wait_in_order(outbox: Outbox) -> None:
    for name in "abc":
        await outbox.append(DEFAULT_TENANT, name, name.encode())
    entries = await outbox.waiting(DEFAULT_TENANT, after=0, limit=2)
    assert [(entry.id, entry.payload) for entry in entries] == [("a", b"a"), ("b", b"b")]
    assert await _ids(outbox, after=entries[-1].sequence) == ["c"]
    assert outbox.size == 3


async def test_an_id_is_kept_once(outbox: Outbox) -> None:
    await asyncio.gather(*(outbox.append(DEFAULT_TENANT, str(i % 10), b"first") for i in range(50)))
    await outbox.append(DEFAULT_TENANT, "3", b"second")
    assert sorted(await _ids(outbox)) == [str(i) for i in range(10)]
    assert {entry.payload for entry in await outbox.waiting(DEFAULT_TENANT, after=0, limit=100)} == {b"first"}
    assert outbox.size == 10


async def test_removed_entries_are_gone_and_numbers_are_not_used_again(outbox: Outbox) -> None:
    await outbox.append(DEFAULT_TENANT, "a", b"")
    (entry,) = await outbox.waiting(DEFAULT_TENANT, after=0, limit=1)
    await outbox.remove([entry.sequence])
    await outbox.append(DEFAULT_TENANT, "b", b"")
    (later,) = await outbox.waiting(DEFAULT_TENANT, after=0, limit=1)
    assert later.sequence > entry.sequence
    assert outbox.size == 1


async def test_refused_entries_are_set_aside_with_the_reason(outbox: Outbox, tmp_path: Path) -> None:
    for name in "ab":
        await outbox.append(DEFAULT_TENANT, name, b"")
    (first, _) = await outbox.waiting(DEFAULT_TENANT, after=0, limit=2)
    await outbox.set_aside(first.sequence, "INVALID_FIELD: id")
    assert await _ids(outbox) == ["b"]
    assert outbox.size == 1
    with sqlite3.connect(tmp_path / "deep" / "outbox.db") as file:
        rows = file.execute("SELECT id, reason FROM outbox_set_aside").fetchall()
    file.close()
    assert rows == [("a", "INVALID_FIELD: id")]


async def test_a_full_outbox_takes_no_more(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=2, tenant_share=1.0)
    await outbox.open()
    await outbox.append(DEFAULT_TENANT, "a", b"")
    await outbox.append(DEFAULT_TENANT, "b", b"")
    with pytest.raises(Unavailable) as caught:
        await outbox.append(DEFAULT_TENANT, "c", b"")
    assert caught.value.reason == "OUTBOX_FULL"
    (entry, _) = await outbox.waiting(DEFAULT_TENANT, after=0, limit=2)
    await outbox.remove([entry.sequence])
    await outbox.append(DEFAULT_TENANT, "c", b"")
    assert await _ids(outbox) == ["b", "c"]
    await outbox.close()


async def test_what_another_process_brought_makes_room(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    before, after = Outbox(path, capacity=2, tenant_share=1.0), Outbox(path, capacity=2, tenant_share=1.0)
    await before.open()
    for id_ in ("a", "b"):
        await before.append("acme", id_, b"x")
    await after.open()
    await before.remove([entry.sequence for entry in await before.waiting("acme", after=0, limit=9)])
    await before.close()
    assert await after.tenants() == []  # looked at every few seconds
    await after.append("acme", "c", b"x")
    assert after.size == 1
    await after.close()


async def test_what_is_kept_survives(tmp_path: Path) -> None:
    first = Outbox(tmp_path / "outbox.db", capacity=10)
    await first.open()
    await first.append(DEFAULT_TENANT, "a", b"payload")
    # A second process on the file, without the first one ever closing it.
    second = Outbox(tmp_path / "outbox.db", capacity=10)
    await second.open()
    assert second.size == 1
    assert [(one.id, one.payload) for one in await second.waiting(DEFAULT_TENANT, after=0, limit=9)] == [
        ("a", b"payload")
    ]
    await second.close()
    await first.close()


async def test_an_observation_beyond_the_share_is_refused_and_the_outbox_lives_on(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=100, max_bytes=100_000)
    await outbox.open()
    await outbox.append(DEFAULT_TENANT, "a", b"")
    with pytest.raises(Unavailable) as caught:
        await outbox.append(DEFAULT_TENANT, "b", bytes(500_000))
    assert caught.value.reason == "OUTBOX_FULL"
    await outbox.append(DEFAULT_TENANT, "c", b"")
    assert await _ids(outbox) == ["a", "c"]
    assert outbox.size == 2
    await outbox.close()


async def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot create the folder"):
        await Outbox(tmp_path / "file" / "outbox.db", capacity=1).open()


async def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "outbox.db").write_bytes(b"something else" * 100)
    with pytest.raises(Unavailable) as caught:
        await Outbox(tmp_path / "outbox.db", capacity=1).open()
    assert caught.value.reason == "OUTBOX_DAMAGED"


async def test_entries_of_tenants_are_apart(outbox: Outbox) -> None:
    for tenant, id_ in (("acme", "a"), (DEFAULT_TENANT, "a"), ("acme", "b"), ("acme", "a")):
        await outbox.append(tenant, id_, tenant.encode())
    assert outbox.size == 3
    assert sorted(await outbox.tenants()) == ["acme", DEFAULT_TENANT]
    theirs = await outbox.waiting("acme", after=0, limit=9)
    assert [(one.tenant, one.id, one.payload) for one in theirs] == [
        ("acme", "a", b"acme"),
        ("acme", "b", b"acme"),
    ]
    await outbox.remove([one.sequence for one in theirs])
    assert await outbox.tenants() == [DEFAULT_TENANT]


async def test_entries_of_before_there_were_tenants_are_the_default_ones(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE outbox (sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
            " payload BLOB NOT NULL, refused TEXT)"
        )
        database.executemany(
            "INSERT INTO outbox VALUES (?, ?, ?, ?)",
            [(7, "a", b"x", None), (9, "b", b"y", "why"), (11, "c", b"z", None)],
        )
    database.close()
    for _ in range(2):
        outbox = Outbox(path, capacity=10)
        await outbox.open()
        assert [
            (one.sequence, one.id, one.payload)
            for one in await outbox.waiting(DEFAULT_TENANT, after=0, limit=9)
        ] == [
            (7, "a", b"x"),
            (11, "c", b"z"),
        ]
        assert outbox.size == 2
        await outbox.close()
    outbox = Outbox(path, capacity=10)
    await outbox.open()
    await outbox.append("acme", "a", b"")
    (entry,) = await outbox.waiting("acme", after=0, limit=9)
    assert entry.sequence > 11  # numbers are not given again
    await outbox.close()


async def test_of_what_was_refused_the_newest_are_kept(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=100, max_set_aside=4)
    await outbox.open()
    for name in "abcd":
        await outbox.append(DEFAULT_TENANT, name, b"")
    for entry in (await outbox.waiting(DEFAULT_TENANT, after=0, limit=9))[:3]:
        await outbox.set_aside(entry.sequence, "never")
    assert await _ids(outbox) == ["d"]
    await outbox.close()
    with sqlite3.connect(tmp_path / "outbox.db") as file:
        assert file.execute("SELECT id FROM outbox_set_aside").fetchall() == [("b",), ("c",)]
    file.close()


async def test_a_limit_of_the_file_system_says_what_to_do(tmp_path: Path) -> None:
    # A quota, a full disk, a limit of a file's size: the system refuses to write more, here beyond 200 kB.
    program = """
import asyncio, resource, signal, sys
from pathlib import Path
from evenmesh.wire.errors import Unavailable
from evenmesh_orchestrator.observations.outbox import Outbox

async def main():
    outbox = Outbox(Path(sys.argv[1]), capacity=1000)
    await outbox.open()
    await outbox.append("t", "a", bytes(1000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        await outbox.append("t", "b", bytes(500_000))
    except Unavailable as error:
        print(error.reason, error)
    await outbox.append("t", "c", bytes(1000))
    print([one.id for one in await outbox.waiting("t", after=0, limit=9)])
    await outbox.close()

asyncio.run(main())
"""
    path = str(tmp_path / "outbox.db")
    command = [sys.executable, "-c", program, path]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    message, kept = ended.stdout.splitlines()
    assert message.startswith("OUTBOX_DISK_FULL the disk of the outbox is full, or fails: make room there")
    assert kept == "['a', 'c']"


async def test_a_tenant_that_fills_its_share_leaves_room_for_the_others(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=1000, max_bytes=2**22)
    await outbox.open()
    for number in range(100):  # 100 of 100 kB are more than the file takes
        with suppress(Unavailable):
            await outbox.append("greedy", str(number), bytes(100_000))
    with pytest.raises(Unavailable, match="tenant greedy has filled its share") as caught:
        await outbox.append("greedy", "more", bytes(100_000))
    assert caught.value.reason == "OUTBOX_FULL"
    for number in range(4):
        await outbox.append("modest", str(number), bytes(100_000))
    assert len(await outbox.waiting("modest", after=0, limit=9)) == 4
    await outbox.close()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_shares_never_exceed_the_store_and_leave_room_for_a_newcomer(steps: list[tuple[str, bool]]) -> None:
    shares = DynamicShares(1000, 0.75)
    for tenant, takes_all in steps:
        room = shares.room(tenant)
        shares.add(tenant, room if takes_all else -shares.of(tenant))
        assert shares.total == sum(map(shares.of, "abc")) <= 1000
        assert shares.of(tenant) <= 750
        assert shares.room("newcomer") >= 11  # three that come one after another leave 1000 / 4^3


async def test_what_the_evaluator_could_never_take_is_not_stored(outbox: Outbox) -> None:
    with pytest.raises(MeshError) as caught:
        await outbox.append("t", "a", bytes(101), largest=100)
    assert caught.value.reason == "OBSERVATION_TOO_LARGE"
    await outbox.append("t", "a", bytes(100), largest=100)
    assert outbox.size == 1


async def test_large_entries_are_read_a_few_at_a_time(outbox: Outbox) -> None:
    for name in "abc":
        await outbox.append("t", name, bytes(1000))
    read = await outbox.waiting("t", after=0, limit=9, max_bytes=1500)
    assert [one.id for one in read] == ["a", "b"]


async def test_attempts_survive_a_restart_and_can_be_taken_back(tmp_path: Path) -> None:
    for attempt in range(3):
        outbox = Outbox(tmp_path / "outbox.db", capacity=10)
        await outbox.open()
        await outbox.append("t", "a", b"")
        (entry,) = await outbox.waiting("t", after=0, limit=9)
        assert entry.attempts == attempt
        await outbox.begin([entry.sequence])
        await outbox.close()
    outbox = Outbox(tmp_path / "outbox.db", capacity=10)
    await outbox.open()
    await outbox.withdraw([entry.sequence])
    assert [one.attempts for one in await outbox.waiting("t", after=0, limit=9)] == [2]
    await outbox.close()


async def test_only_the_owner_can_read_the_outbox(tmp_path: Path) -> None:
    folder = tmp_path / "orchestrator"
    folder.mkdir(mode=0o755)
    (folder / "outbox.db").touch(mode=0o644)
    outbox = Outbox(folder / "outbox.db", capacity=10)
    await outbox.open()
    await outbox.append("t", "a", b"")
    assert {one.name: one.stat().st_mode & 0o777 for one in folder.iterdir()} == {
        "outbox.db": 0o600,
        "outbox.db-wal": 0o600,
        "outbox.db-shm": 0o600,
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    await outbox.close()


OPENING = """
import asyncio, sys
from pathlib import Path
from evenmesh.wire.errors import Unavailable
from evenmesh_orchestrator.observations.outbox import Outbox

async def opened():
    outbox = Outbox(Path(sys.argv[1]), capacity=10)
    try:
        await outbox.open()
        print("opened")
    except Unavailable as error:
        print(error.reason)
    finally:
        await outbox.close()

asyncio.run(opened())
"""


@pytest.mark.parametrize("read_only", ["folder", "folder of an outbox", "file"])
async def test_an_outbox_that_was_made_read_only_stays_so_and_does_not_open(
    tmp_path: Path, read_only: str
) -> None:
    folder = tmp_path / "orchestrator"
    folder.mkdir()
    file = folder / "outbox.db"
    if read_only != "folder":
        outbox = Outbox(file, capacity=10)
        await outbox.open()
        await outbox.close()
    (changed, mode) = (file, 0o400) if read_only == "file" else (folder, 0o500)
    changed.chmod(mode)
    # Root may write everywhere, unless it gives that right up.
    rights = "-dac_override,-dac_read_search"
    bound = [required("setpriv"), f"--bounding-set={rights}"] if os.geteuid() == 0 else []
    command = [*bound, sys.executable, "-c", OPENING, file]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "OUTBOX_READ_ONLY", done.stderr
    assert changed.stat().st_mode & 0o777 == mode
    folder.chmod(0o700)
