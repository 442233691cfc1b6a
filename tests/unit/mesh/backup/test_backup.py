"""Backups: of stores that are being written, compared before anything is touched, and brought back whole."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from evenmesh.commands import main
from evenmesh_mesh import Mesh, MeshSettings, MeshStartError
from evenmesh_mesh.backup import BackupError, Manifest, Stores, restore, take, verified
from evenmesh_mesh.backup.restoring import interrupted
from evenmesh_mesh.backup.taking import run_postgresql
from evenmesh_mesh.lock import MeshLock
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback.domain import Feedback
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore, Pointer
from tests.support.postgres import Postgres


def _item(id_: str) -> Feedback:
    return Feedback(id=id_, query=f"query {id_}", passage_id="p", agent=Agent("qa", "ann"), usefulness=1.0)


async def _feedback(url: URL, *ids: str) -> set[str]:
    """Records feedback; the ids of all that is stored."""
    database = Database(url)
    await database.open()
    store = SqlFeedbackStore(database)
    if ids:
        await store.record([_item(id_) for id_ in ids])
    stored = {one.feedback.id for one in await store.page(AllAgents(), include_flagged=True)}
    await database.close()
    return stored


def _url(home: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=str(home / "reranker" / "feedback.db"))


def _collection(home: Path, name: str = "rivers") -> Path:
    """The files of a collection of one segment, with work in progress and an older version beside it."""
    folder = home / "collections" / "default" / name
    segment = folder / "segments" / "000001-aaaaaaaaaaaa"
    (segment / "dense-000001-bbbbbbbbbbbb").mkdir(parents=True)
    (segment / ".partial-x").mkdir()
    (folder / "segments" / "000000-oldoldoldold").mkdir()
    (folder / "versions").mkdir()
    (segment / "manifest.json").write_text("{}")
    (segment / "arrays.bin").write_bytes(b"arrays")
    (segment / "dense-000001-bbbbbbbbbbbb" / "vectors.bin").write_bytes(b"vectors")
    dead = {"file": "000002-dddddddddddd.dead"}
    reported = {"segments": [{"name": segment.name, "dense": "000001-bbbbbbbbbbbb", "dead": dead}]}
    (folder / "versions" / "000002-cccccccccccc.json").write_text(json.dumps(reported))
    (folder / "versions" / "000002-dddddddddddd.dead").write_bytes(b"dead")
    (folder / "versions" / "000001-eeeeeeeeeeee.json").write_text("{}")
    (folder / "CURRENT").write_text("000002-cccccccccccc")
    return folder


def _models(home: Path) -> str:
    """A model version that is served; its name."""
    store = ModelStore(home / "reranker" / "models")
    with store.write(Lineage("a test")) as draft:
        (draft.folder / "model.safetensors").write_bytes(b"weights")
    store.set_pointer(AllAgents(), Pointer(draft.version))
    return draft.version


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a bit of everything."""
    home = tmp_path / "home"
    asyncio.run(_feedback(_url(home), "a", "b"))
    _collection(home)
    _models(home)
    (home / "sources.yaml").write_text("sources: {}\n")
    return home


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_backed_up_is_brought_back(home: Path, tmp_path: Path) -> None:
    manifest = take(Stores.find(home, {}), tmp_path / "backup")
    assert [part.name for part in manifest.parts] == ["feedback", "models", "collections", "sources"]
    assert manifest == verified(tmp_path / "backup")
    elsewhere = tmp_path / "elsewhere"
    _, aside = restore(tmp_path / "backup", Stores.find(elsewhere, {}))
    assert aside is None
    assert asyncio.run(_feedback(_url(elsewhere))) == {"a", "b"}
    assert (elsewhere / "sources.yaml").read_text() == "sources: {}\n"
    store = ModelStore(elsewhere / "reranker" / "models")
    version = store.pointer(AllAgents()).serving
    assert version is not None
    store.verified(version)
    there = _files(elsewhere / "collections" / "default" / "rivers")
    assert set(there) == {  # the version that is current, and nothing that is none of it
        "CURRENT",
        "versions/000002-cccccccccccc.json",
        "versions/000002-dddddddddddd.dead",
        "segments/000001-aaaaaaaaaaaa/manifest.json",
        "segments/000001-aaaaaaaaaaaa/arrays.bin",
        "segments/000001-aaaaaaaaaaaa/dense-000001-bbbbbbbbbbbb/vectors.bin",
    }


def test_what_is_there_is_replaced_only_on_request_and_then_moved_aside(home: Path, tmp_path: Path) -> None:
    stores = Stores.find(home, {})
    take(stores, tmp_path / "backup")
    asyncio.run(_feedback(_url(home), "later"))
    before = _files(home)
    with pytest.raises(BackupError, match=r"feedback\.db exists(.|\n)*--overwrite"):
        restore(tmp_path / "backup", stores)
    assert {name: content for name, content in _files(home).items() if name in before} == before
    _, aside = restore(tmp_path / "backup", stores, overwrite=True)
    assert asyncio.run(_feedback(_url(home))) == {"a", "b"}
    assert aside is not None
    kept = URL.create("sqlite+aiosqlite", database=str(aside / "reranker" / "feedback.db"))
    assert asyncio.run(_feedback(kept)) == {"a", "b", "later"}


@pytest.mark.parametrize("what", ["changed", "missing", "shortened"])
def test_a_backup_that_is_not_whole_touches_nothing(home: Path, tmp_path: Path, what: str) -> None:
    backup = tmp_path / "backup"
    take(Stores.find(home, {}), backup)
    path = backup / "collections/default/rivers/segments/000001-aaaaaaaaaaaa/arrays.bin"
    match what:
        case "changed":
            path.write_bytes(b"Arrays")
        case "missing":
            path.unlink()
        case _:
            path.write_bytes(b"arr")
    with pytest.raises(BackupError, match=r"arrays\.bin"):
        restore(backup, Stores.find(tmp_path / "elsewhere", {}))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "collections/../../outside", ""])
def test_a_manifest_that_names_what_is_not_its_own_is_refused(home: Path, tmp_path: Path, path: str) -> None:
    backup = tmp_path / "backup"
    take(Stores.find(home, {}), backup)
    reported = json.loads((backup / "manifest.json").read_text())
    reported["parts"][0]["path"] = path
    (backup / "manifest.json").write_text(json.dumps(reported))
    with pytest.raises(BackupError, match="cannot be understood"):
        Manifest.read(backup)


def test_a_mesh_that_runs_is_not_restored_over(home: Path, tmp_path: Path) -> None:
    take(Stores.find(home, {}), tmp_path / "backup")
    with MeshLock(home), pytest.raises(BackupError, match="evenmesh down"):
        restore(tmp_path / "backup", Stores.find(home, {}), overwrite=True)


def test_a_database_is_copied_whole_while_it_is_written(tmp_path: Path) -> None:
    # Every commit writes two rows that add up to zero: a copy with half a commit would not.
    path = tmp_path / "home" / "evaluator" / "observations.db"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE sums (value INTEGER)")
    database.close()
    ended = threading.Event()

    def write() -> None:
        mine = sqlite3.connect(path, isolation_level=None, timeout=30)
        number = 0
        while not ended.is_set():
            number += 1
            mine.execute("BEGIN IMMEDIATE")
            mine.execute("INSERT INTO sums VALUES (?)", (number,))
            mine.execute("INSERT INTO sums VALUES (?)", (-number,))
            mine.execute("COMMIT")
        mine.close()

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    try:
        for turn in range(5):
            take(Stores.find(tmp_path / "home", {}), tmp_path / f"backup-{turn}")
            copy = sqlite3.connect(tmp_path / f"backup-{turn}" / "evaluator" / "observations.db")
            counts.append(copy.execute("SELECT count(*), coalesce(sum(value), 0) FROM sums").fetchone())
            copy.close()
    finally:
        ended.set()
        writer.join()
    assert all(total == 0 and count % 2 == 0 for count, total in counts)
    assert counts == sorted(counts)


def test_a_collection_that_is_removed_meanwhile_is_left_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _collection(home, "towns")
    copy = shutil.copyfile

    def copy_and_remove(source: Path, target: Path) -> None:
        if "towns" in str(source):
            shutil.rmtree(home / "collections" / "default" / "towns", ignore_errors=True)
        copy(source, target)

    monkeypatch.setattr("evenmesh_mesh.backup.taking.shutil.copyfile", copy_and_remove)
    take(Stores.find(home, {}), tmp_path / "backup")
    assert [path.name for path in (tmp_path / "backup/collections/default").iterdir()] == ["rivers"]


def test_nothing_is_left_of_a_backup_that_fails(home: Path, tmp_path: Path) -> None:
    (home / "reranker" / "feedback.db").write_bytes(b"no database" * 100)
    with pytest.raises(BackupError, match=r"feedback\.db cannot be copied"):
        take(Stores.find(home, {}), tmp_path / "backups" / "one")
    assert list((tmp_path / "backups").iterdir()) == []


def test_postgresql_is_dumped_and_restored(postgres: Postgres, tmp_path: Path) -> None:
    from sqlalchemy import make_url

    url = make_url(postgres.url)
    given = {"EVENMESH_RERANKER_DATABASE_URL": url.set(drivername="postgresql").render_as_string()}
    stores = Stores.find(tmp_path / "home", given)
    asyncio.run(_feedback(url, "a", "b"))
    manifest = take(stores, tmp_path / "backup")
    assert [(part.name, part.kind) for part in manifest.parts] == [("feedback", "postgresql")]
    asyncio.run(_feedback(url, "later"))
    with pytest.raises(BackupError, match="PostgreSQL database of the feedback exists"):
        restore(tmp_path / "backup", stores)
    restore(tmp_path / "backup", stores, overwrite=True)
    assert asyncio.run(_feedback(url)) == {"a", "b"}
    with pytest.raises(BackupError, match="of postgresql and here they are in SQLite"):
        restore(tmp_path / "backup", Stores.find(tmp_path / "home", {}))


def test_tables_of_a_later_schema_go_with_the_database_that_is_replaced(
    postgres: Postgres, tmp_path: Path
) -> None:
    from sqlalchemy import make_url

    url = make_url(postgres.url)
    given = {"EVENMESH_RERANKER_DATABASE_URL": url.set(drivername="postgresql").render_as_string()}
    stores = Stores.find(tmp_path / "home", given)
    asyncio.run(_feedback(url, "a"))
    earlier = Path(__file__).parents[3] / "golden" / "schemas" / "reranker-2.postgresql.sql"
    (database,) = (one for one in stores.databases if one.name == "feedback")
    run_postgresql(
        "psql", ["--quiet", "--command=DROP SCHEMA public CASCADE; CREATE SCHEMA public"], database
    )
    run_postgresql("psql", ["--quiet", f"--file={earlier}"], database)
    take(stores, tmp_path / "backup")
    before = asyncio.run(_feedback(url, "later"))  # upgrades it
    restore(tmp_path / "backup", stores, overwrite=True)
    assert asyncio.run(_feedback(url)) == before - {"later"}


def test_a_database_that_a_service_has_open_is_not_replaced(home: Path, tmp_path: Path) -> None:
    stores = Stores.find(home, {})
    take(stores, tmp_path / "backup")

    async def during() -> None:
        database = Database(_url(home))
        await database.open()
        await SqlFeedbackStore(database).record([_item("later")])
        with pytest.raises(BackupError, match=r"a service has .*feedback\.db open: stop it first"):
            restore(tmp_path / "backup", stores, overwrite=True)
        await database.close()

    asyncio.run(during())
    assert not list(home.glob("replaced-*"))
    restore(tmp_path / "backup", stores, overwrite=True)


def test_the_disk_that_is_full_is_the_one_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``shutil.copyfile`` raises it, from ``sendfile``."""

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    stores = Stores.find(home, {})
    take(stores, tmp_path / "backup")
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(BackupError, match=r"cannot write \S*/elsewhere/\.restoring-"):
        restore(tmp_path / "backup", Stores.find(tmp_path / "elsewhere", {}))


def test_a_full_disk_of_the_backup_is_not_blamed_on_the_database(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def small(database: str | Path, **options: Any) -> sqlite3.Connection:
        connection = connect(database, **options)
        if isinstance(database, Path):  # the copy
            connection.execute("PRAGMA max_page_count=2")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(BackupError, match=r"^cannot write \S*/\.backup\.\w+/\S+\.db: No space left"):
        take(Stores.find(home, {}), tmp_path / "backup")
    assert not list(tmp_path.glob("*backup*"))


def test_a_database_on_another_disk_that_is_full_stays_as_it_was(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move to another disk is a copy, so it must not begin after the database there was moved aside."""
    disk, copy = tmp_path / "disk", shutil.copyfile

    def full(source: Path, target: Path) -> None:
        if Path(target).is_relative_to(disk):
            Path(target).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))
        copy(source, target)

    file = disk / "feedback.db"
    stores = Stores.find(home, {"EVENMESH_RERANKER_DATABASE_URL": f"sqlite:///{file}"})
    url = URL.create("sqlite+aiosqlite", database=str(file))
    assert asyncio.run(_feedback(url, "a")) == {"a"}
    take(stores, tmp_path / "backup")
    assert asyncio.run(_feedback(url, "b")) == {"a", "b"}

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(BackupError, match=r"cannot write \S*/disk/"):
            restore(tmp_path / "backup", stores, overwrite=True)
    assert not list(home.glob("replaced-*"))
    assert [one.name for one in disk.iterdir()] == ["feedback.db"]
    assert asyncio.run(_feedback(url)) == {"a", "b"}

    _, aside = restore(tmp_path / "backup", stores, overwrite=True)
    assert aside is not None
    assert (aside / "reranker" / "feedback.db").is_file()
    assert [one.name for one in disk.iterdir()] == ["feedback.db"]
    assert asyncio.run(_feedback(url)) == {"a"}


def test_a_failure_names_where_the_first_part_was_moved(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, move = Stores.find(home, {}), shutil.move
    take(stores, tmp_path / "backup")

    def fail(source: Path, target: Path) -> None:
        if ".restoring-" in str(source):
            raise OSError(errno.EIO, "Input/output error", str(target))
        move(source, target)

    monkeypatch.setattr(shutil, "move", fail)
    with pytest.raises(BackupError) as failed:
        restore(tmp_path / "backup", stores, overwrite=True)
    [aside] = home.glob("replaced-*")
    assert any(one.is_file() for one in aside.rglob("*.db"))
    assert str(failed.value).endswith(f"nothing was brought back; what was there before is in {aside}")
    assert "Input/output error" in str(failed.value)


def test_a_restore_that_is_interrupted_says_what_it_left(home: Path, tmp_path: Path) -> None:
    take(Stores.find(home, {}), tmp_path / "backup")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(
        BackupError, match=r"^interrupted\nonly the feedback were brought back; what .* is in"
    ):
        restore(tmp_path / "backup", Stores.find(home, {}), overwrite=True, on_part=interrupt)
    assert interrupted(home) is None  # as it was said


def test_no_mesh_starts_on_a_home_that_a_killed_restore_left_half_done(home: Path, tmp_path: Path) -> None:
    stores = Stores.find(home, {})
    take(stores, tmp_path / "backup")
    killed = (
        "import os, sys, pathlib\n"
        "from evenmesh_mesh.backup import Stores, restore\n"
        "backup, home = map(pathlib.Path, sys.argv[1:])\n"
        "restore(backup, Stores.find(home, {}), overwrite=True, on_part=lambda _: os.kill(os.getpid(), 9))\n"
    )
    done = subprocess.run([sys.executable, "-c", killed, tmp_path / "backup", home], check=False)
    assert done.returncode == -signal.SIGKILL

    async def start() -> None:
        async with Mesh(MeshSettings(home=home, port=0, services=())):
            pytest.fail("started with a part of the data")

    with pytest.raises(MeshStartError, match=r"interrupted .* --overwrite; .* is in .*/replaced-"):
        asyncio.run(start())

    restore(tmp_path / "backup", stores, overwrite=True)
    assert interrupted(home) is None
    assert list(home.glob(".restoring-*")) == []
    assert (home / "collections" / "default" / "rivers" / "CURRENT").is_file()


def test_commands(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = str(tmp_path / "backup")
    monkeypatch.setenv("EVENMESH_OBSERVATION_LOG", "redis://127.0.0.1:1/0")
    assert main(["backup", backup, "--home", str(home)]) == 0
    assert "EVENMESH_OBSERVATION_LOG are not part of it" in capsys.readouterr().err
    assert main(["backup", backup, "--home", str(home)]) == 1
    assert "exists; name a new folder" in capsys.readouterr().err
    assert main(["backup", str(tmp_path / "a b"), "--home", str(home)]) == 0
    assert f"`evenmesh restore '{tmp_path}/a b'` restores it" in capsys.readouterr().out
    assert main(["restore", backup, "--check"]) == 0
    assert "is whole" in capsys.readouterr().out
    assert main(["restore", backup, "--home", str(home)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "home"), "--check"]) == 1
    assert "is not a backup" in capsys.readouterr().err
    assert main(["backup", str(tmp_path / "empty"), "--home", str(tmp_path / "nowhere")]) == 1
    assert "nothing to back up" in capsys.readouterr().err


def test_sockets_and_tls_of_a_url_reach_postgresqls_programs(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://ann:a%40b@/mesh?host=/run/pg&port=5433&ssl=require"
    observations, feedback = Stores.find(
        tmp_path,
        {
            "EVENMESH_EVALUATOR_DATABASE_URL": url,
            "EVENMESH_RERANKER_DATABASE_URL": "postgresql://ann@db.example:5432/mesh?sslmode=verify-full&sslrootcert=/ca.pem",
        },
    ).databases
    assert observations.server == {
        "PGHOST": "/run/pg",
        "PGPORT": "5433",
        "PGUSER": "ann",
        "PGPASSWORD": "a@b",
        "PGDATABASE": "mesh",
        "PGSSLMODE": "require",
    }
    assert (feedback.server["PGHOST"], feedback.server["PGPORT"]) == ("db.example", "5432")
    assert (feedback.server["PGSSLMODE"], feedback.server["PGSSLROOTCERT"]) == ("verify-full", "/ca.pem")


@pytest.mark.parametrize(("fails", "said"), [(1, None), (2, "only the observations were brought back")])
def test_a_server_that_refuses_is_met_before_files_are_moved(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, said: str | None
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, does in {
        "pg_dump": 'for one; do case $one in --file=*) echo dump > "${one#--file=}";; esac; done',
        "psql": "echo 0",
        "pg_restore": f"echo x >> {programs}/calls; [ $(wc -l < {programs}/calls) -lt {fails} ]",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    server = "postgresql+asyncpg://ann@db.example/mesh"
    environment = {f"EVENMESH_{name}_DATABASE_URL": server for name in ("EVALUATOR", "RERANKER")}
    take(Stores.find(home, environment), tmp_path / "backup")
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(BackupError, match="pg_restore of the") as refused:
        restore(tmp_path / "backup", Stores.find(elsewhere, environment))
    assert not any((elsewhere / one).exists() for one in ("orchestrator", "reranker", "collections"))
    assert said is None or said in str(refused.value)
