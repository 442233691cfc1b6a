"""Databases of every schema there ever was, opened by the stores of today; see tests/golden/schemas."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    make_url,
    select,
    table,
    text,
)
from sqlalchemy.ext.asyncio import create_async_engine

from evenmesh.wire.errors import Unavailable
from evenmesh_evaluator.backends import schema as evaluator_schema
from evenmesh_evaluator.backends import sql_tables as evaluator_tables
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import Window
from evenmesh_evaluator.observations.servicer import measure_payload
from evenmesh_evaluator.reports.summary import report
from evenmesh_kit.storage import scripts, sql
from evenmesh_kit.storage.migrations import Schema
from evenmesh_kit.storage.sql import SqlDatabase
from evenmesh_orchestrator.conversations.sql import schema as orchestrator_schema
from evenmesh_orchestrator.conversations.sql import tables as orchestrator_tables
from evenmesh_orchestrator.conversations.sql.database import Database as Conversations
from evenmesh_reranker.backends.sql import schema as reranker_schema
from evenmesh_reranker.backends.sql import tables as reranker_tables
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.tables import AGENTS, TRAININGS
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback.domain import Feedback, RecordStatus
from tests.support.postgres import Postgres

GOLDEN = Path(__file__).parents[1] / "golden" / "schemas"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    """The folder of a database's file, which not only stores open here."""
    (tmp_path / "deep").mkdir()


def _load(url: URL, name: str) -> None:
    """Fills the database with a dump of an earlier version of evenmesh."""
    dump = GOLDEN / f"{name}.{url.get_backend_name()}.sql"
    if url.get_backend_name() == "sqlite":
        database = sqlite3.connect(str(url.database))
        database.executescript(dump.read_text())
        database.close()
        return
    target = url.set(drivername="postgresql").render_as_string()
    subprocess.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", target, "-f", str(dump)], check=True)


async def _differences(url: URL, metadata: MetaData, schema: Schema) -> list[Any]:
    """What the database's tables have otherwise than the code has them, as Alembic sees it."""

    def compare(connection: Connection) -> list[Any]:
        ours = set(metadata.tables)

        def included(_: Any, name: str | None, kind: str, *__: Any) -> bool:
            return kind != "table" or name in ours

        context = MigrationContext.configure(
            connection, opts={"version_table": schema.version_table, "include_object": included}
        )
        return list(compare_metadata(context, metadata))

    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = await connection.run_sync(compare)
    await engine.dispose()
    return found


async def _execute(url: URL, statement: str) -> Any:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        rows = await connection.execute(text(statement))
        found = rows.all() if rows.returns_rows else None
    await engine.dispose()
    return found


def _evaluator(url: URL) -> SqlObservationStore:
    return SqlObservationStore(url, remeasure=measure_payload, clock=lambda: 1_700_000_600_000_000)


@pytest.mark.parametrize("name", ["evaluator-1", "evaluator-2", ""])
async def test_observations_of_every_schema_are_there_after_an_upgrade(url: URL, name: str) -> None:
    if name:
        _load(url, name)
    for _ in range(2):  # the second finds nothing to do
        store = _evaluator(url)
        await store.open()
        totals = await store.totals("default", "run", Window.ALL)
        page = await store.measurements("default", "run", after=-1, limit=10)
        elsewhere = await store.totals("another", "run", Window.ALL)
        await store.close()
        assert elsewhere is None
        if not name:
            assert totals is None
            continue
        assert totals is not None
        found = report("run", Window.ALL, totals, max_names=10)
        assert (found.num_observations, found.num_rankings) == (3, 3 * 2)
        # "the Elbe" once and "the Rhine" twice, and the Rhine is right.
        assert found.estimates["expected_utility"].mean == pytest.approx((0 + 1 + 1) / 3)
        assert [one.observation_id for one in page] == ["o0", "o1", "o2"]
        # What the tenant keeps is what its observations take, of which each is counted with 1,024 bytes more; those
        # of the first schema are stored anew, with 256 bytes for the day of each of three providers. Each of two
        # queries counts 512.
        more = 3 * 1024 + 2 * 512 + (3 * 256 if name == "evaluator-1" else 0)
        held = "SELECT CAST(SUM(LENGTH(payload)) AS BIGINT) FROM observations"
        ((size,),) = await _execute(url, held)
        usage = "SELECT tenant, num_bytes, num_runs, num_configurations FROM tenant_usage"
        assert [tuple(row) for row in await _execute(url, usage)] == [("default", size + more, 1, 1)]
    assert await _differences(url, evaluator_tables.METADATA, evaluator_schema.SCHEMA) == []


@pytest.mark.parametrize("name", ["reranker-1", "reranker-2", ""])
async def test_feedback_of_every_schema_is_there_after_an_upgrade(url: URL, name: str) -> None:
    if name:
        _load(url, name)
    for _ in range(2):
        database = Database(url)
        await database.open()
        store = SqlFeedbackStore(database)
        stored = {
            one.feedback.id: one.feedback for one in await store.page(AllAgents(), include_flagged=True)
        }
        async with database.read() as connection:
            agents = (
                await connection.execute(select(AGENTS.c.tenant, AGENTS.c.model_id, AGENTS.c.stored))
            ).all()
            upto = (await connection.execute(select(TRAININGS.c.tenant, TRAININGS.c.trained_upto))).all()
        await database.close()
        if name:
            assert set(stored) == {"f0", "f1", "f2", "f3"}
            assert sorted(map(tuple, agents)) == [("default", "ann", 2), ("default", "bob", 2)]
            assert sorted(map(tuple, upto)) == [("default", 3), ("default", 4)]
    assert await _differences(url, reranker_tables.METADATA, reranker_schema.SCHEMA) == []
    if not name:
        return
    # What was known stays known, and numbers that were given once are not given again: f4 had 5.
    database = Database(url)
    await database.open()
    store = SqlFeedbackStore(database)
    again = await store.record([stored["f0"], _item("new")])
    newest = (await store.page(AllAgents(), after=4, include_flagged=True))[-1]
    await database.close()
    assert [one.status for one in again] == [RecordStatus.DUPLICATE, RecordStatus.STORED]
    assert (newest.feedback.id, newest.sequence) == ("new", 6)
    assert newest.number == 5  # the four that were stored have the numbers before


async def test_conversations_have_the_tables_of_the_code(url: URL) -> None:
    for _ in range(2):  # the second finds nothing to do
        database = Conversations(url)
        await database.open()
        await database.close()
    assert await _differences(url, orchestrator_tables.METADATA, orchestrator_schema.SCHEMA) == []


async def test_a_script_has_more_time_than_a_statement_of_a_call(postgres: Postgres, tmp_path: Path) -> None:
    """An index of a large table takes longer than any call may: the upgrade would fail at every start."""
    postgres.empty()
    versions = tmp_path / "versions"
    versions.mkdir()
    (versions / "v0001_first.py").write_text(
        "revision, down_revision = '0001', None\n"
        "def upgrade(op):\n    op.execute('CREATE TABLE times (seconds double precision)')\n"
    )
    schema = Schema(MetaData(), tmp_path, "times_schema", lambda _: None, "times")
    engine = create_async_engine(postgres.url)
    async with engine.begin() as connection:
        await connection.run_sync(scripts.run, tmp_path, schema.version_table)
    (versions / "v0002_second.py").write_text(
        "revision, down_revision = '0002', '0001'\n"
        "def upgrade(op):\n"
        "    here = op.get_bind().connection.driver_connection._config.command_timeout\n"
        "    op.execute(f'INSERT INTO times VALUES ({here})')\n"
    )
    for _ in range(2):  # the second finds nothing to do
        database = SqlDatabase(make_url(postgres.url), schema)
        await database.open()
        async with database.read() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver._config.command_timeout == sql._STATEMENT_S
        await database.close()
    async with engine.connect() as connection:
        (seconds,) = await connection.scalars(text("SELECT seconds FROM times"))
    await engine.dispose()
    assert seconds >= 3600


SCHEMAS = {
    "evaluator": evaluator_schema.SCHEMA,
    "orchestrator": orchestrator_schema.SCHEMA,
    "reranker": reranker_schema.SCHEMA,
}


@pytest.mark.parametrize("of", SCHEMAS)
async def test_a_new_database_is_what_the_scripts_make_of_an_empty_one(url: URL, of: str) -> None:
    schema = SCHEMAS[of]
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(schema.upgrade)
        made = await connection.run_sync(_contents)
        await connection.rollback()
        if url.get_backend_name() == "sqlite":  # which its driver here commits with each table
            await connection.run_sync(_drop_all)
        assert await connection.run_sync(_contents) == {}
        await connection.run_sync(scripts.run, schema.scripts, schema.version_table)
        assert await connection.run_sync(_contents) == made
    await engine.dispose()


def _contents(connection: Connection) -> dict[str, Any]:
    """All that a database has: columns, keys, constraints, indexes and rows of each table."""
    there = inspect(connection)
    found = {}
    for name in there.get_table_names():
        columns = {
            one["name"]: {"type": str(one["type"].compile(connection.dialect))}
            | {part: one.get(part) for part in ("nullable", "default", "autoincrement")}
            for one in there.get_columns(name)
        }
        indexes = sorted(there.get_indexes(name), key=lambda one: str(one["name"]))
        unique = sorted(there.get_unique_constraints(name), key=lambda one: str(one["name"]))
        rows = sorted(map(tuple, connection.execute(select(text("*")).select_from(table(name)))))
        keys = there.get_pk_constraint(name), there.get_foreign_keys(name), there.get_check_constraints(name)
        found[name] = columns, indexes, unique, keys, rows
    return found


def _drop_all(connection: Connection) -> None:
    for name in inspect(connection).get_table_names():
        connection.execute(text(f'DROP TABLE "{name}"'))


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_scripts_are_named_by_their_revisions(schema: Schema) -> None:
    revisions = ScriptDirectory(str(schema.scripts)).walk_revisions()
    assert [one.revision for one in revisions][::-1] == schema.revisions()


_NOTES = Table("notes", MetaData(), Column("id", Integer, primary_key=True), Column("text", String))
_SCRIPT = """
import sqlalchemy as sa
revision, down_revision = {revision!r}, {before!r}
def upgrade(op):
    {change}
"""
_CHANGES = {
    "0001": 'op.create_table("notes", sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.String))',
    "0001a": 'op.create_index("notes_by_text", "notes", ["text"])',
    "0002": 'op.add_column("notes", sa.Column("author", sa.String))',
}


def _version(folder: Path, newest: str) -> Schema:
    """The schema of a version of evenmesh that knows the scripts up to one."""
    (folder / newest / "versions").mkdir(parents=True)
    before = None
    for revision, change in _CHANGES.items():
        if revision <= newest:
            script = folder / newest / "versions" / f"v{revision}_notes.py"
            script.write_text(_SCRIPT.format(revision=revision, before=before, change=change))
            before = revision
    return Schema(_NOTES.metadata, folder / newest, "notes_schema", lambda _: None, "notes")


async def test_versions_of_one_number_write_side_by_side_and_go_back(url: URL, tmp_path: Path) -> None:
    async def write(database: SqlDatabase, id_: int) -> None:
        async with database.write() as connection:
            await connection.execute(_NOTES.insert(), {"id": id_, "text": "a"})

    old, new, newest = (_version(tmp_path, revision) for revision in _CHANGES)
    running = SqlDatabase(url, old)
    await running.open()
    await write(running, 1)
    for place, schema in enumerate((new, old, new), start=2):  # a rollout, its end, and another one
        later = SqlDatabase(url, schema)
        await later.open()
        await write(later, 10 * place)
        await write(running, 10 * place + 1)
        await later.close()
    assert await _execute(url, "SELECT version_num FROM notes_schema") == [("0001a",)]
    last = SqlDatabase(url, newest)
    await last.open()
    with pytest.raises(Unavailable) as caught:
        await write(running, 99)
    assert caught.value.reason == "STORE_VERSION"
    await last.close()
    await running.close()
    assert await _execute(url, "SELECT COUNT(*) FROM notes") == [(7,)]


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_script_with_a_letter_only_adds(schema: Schema) -> None:
    for path in schema.scripts.glob("versions/v*_*.py"):
        if path.name.split("_")[0][-1].isalpha():
            text = path.read_text()
            assert set(re.findall(r"op\.(\w+)", text)) <= {"create_index", "create_table"}, path
            assert "unique" not in text, path  # earlier versions may write what it forbids


def test_alembic_is_imported_for_an_older_database_alone(tmp_path: Path) -> None:
    code = """
import sys
from evenmesh_evaluator.backends.schema import SCHEMA
from sqlalchemy import create_engine
with create_engine(f"sqlite:///{sys.argv[1]}").begin() as connection:
    for _ in range(2):
        SCHEMA.upgrade(connection)
    print("alembic" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "new.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def _item(id_: str) -> Feedback:
    return Feedback(id=id_, query="q", passage_id="p", agent=Agent("qa", "ann"), usefulness=1.0)


@pytest.mark.parametrize("of", ["evaluator", "orchestrator", "reranker"])
async def test_a_schema_of_a_later_version_is_refused_and_left_alone(url: URL, of: str) -> None:
    made: dict[str, Callable[[URL], SqlObservationStore | Conversations | Database]] = {
        "evaluator": _evaluator,
        "orchestrator": Conversations,
        "reranker": Database,
    }
    store = made[of](url)
    await store.open()
    await store.close()
    store = made[of](url)
    table = f"evenmesh_{of}_schema"
    await _execute(url, "UPDATE TABLE_OF_IT SET version_num = '9999'".replace("TABLE_OF_IT", table))
    with pytest.raises(
        Unavailable, match="has schema 9999, and this version of evenmesh knows up to 0"
    ) as caught:
        await store.open()
    assert caught.value.reason == "STORE_VERSION"
    left = await _execute(url, "SELECT version_num FROM TABLE_OF_IT".replace("TABLE_OF_IT", table))
    assert left == [("9999",)]


async def test_a_database_of_before_alembic_and_after_our_time_is_refused(url: URL) -> None:
    _load(url, "reranker-2")
    await _execute(url, "UPDATE schema_version SET version = 9")
    with pytest.raises(Unavailable, match="is of version 9"):
        await Database(url).open()


async def test_both_stores_may_be_opened_at_once_by_several_and_share_a_database(url: URL) -> None:
    _load(url, "evaluator-1")
    opened = [*(_evaluator(url) for _ in range(3)), *(Database(url) for _ in range(3))]
    await asyncio.gather(*(one.open() for one in opened))
    totals = [
        await one.totals("default", "run", Window.ALL)
        for one in opened
        if isinstance(one, SqlObservationStore)
    ]
    await asyncio.gather(*(one.close() for one in opened))
    counted = [
        report("run", Window.ALL, one, max_names=1).num_observations for one in totals if one is not None
    ]
    assert counted == [3, 3, 3]


async def test_an_upgrade_that_fails_leaves_the_database_as_it_was(url: URL) -> None:
    _load(url, "evaluator-2")
    # The last step of the upgrade finds something in its way.
    await _execute(url, "CREATE TABLE elsewhere (a INTEGER)")
    await _execute(url, "CREATE INDEX scopes_of_tenant ON elsewhere (a)")
    with pytest.raises(Unavailable):
        await _evaluator(url).open()
    await _execute(url, "DROP TABLE elsewhere")
    store = _evaluator(url)
    await store.open()
    assert len(await store.measurements("default", "run", after=-1, limit=10)) == 3
    await store.close()
