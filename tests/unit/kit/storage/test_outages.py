"""What the log says of a database that cannot be used for a while."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import URL, Column, Integer, MetaData, Table
from sqlalchemy.exc import DBAPIError

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.storage.failures import cause_of
from evenmesh_kit.storage.migrations import Schema
from evenmesh_kit.storage.sql import SqlDatabase

NOTES = Table("notes", MetaData(), Column("id", Integer, primary_key=True))


async def test_an_outage_is_logged_at_its_start_and_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "v0001_notes.py").touch()
    schema = Schema(NOTES.metadata, tmp_path, "notes_schema", lambda _: None, "notes")
    file = tmp_path / "notes.db"
    database = SqlDatabase(URL.create("sqlite+aiosqlite", database=str(file)), schema, lock_timeout_s=0.0)
    await database.open()

    async def write(id_: int) -> None:
        async with database.write() as connection:
            await connection.execute(NOTES.insert(), {"id": id_})

    caplog.set_level(logging.INFO, "evenmesh.kit.storage")
    await write(1)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(3):
        with pytest.raises(Unavailable):
            await write(2)
    async with database.read() as connection:  # reading works meanwhile, and ends no outage
        assert len((await connection.execute(NOTES.select())).all()) == 1
    other.execute("ROLLBACK")
    other.close()
    await write(2)
    await write(3)
    await database.close()
    assert caplog.messages == [
        "another process has locked the database of notes for too long: try again (OperationalError)",
        "the database of notes can be written again",
    ]


def test_the_cause_of_a_failure_has_no_words_of_the_database() -> None:
    class InvalidPasswordError(Exception):
        sqlstate = "28P01"

    driver = RuntimeError("password of evenmesh is hunter2")
    driver.__cause__ = InvalidPasswordError("hunter2")
    assert cause_of(DBAPIError("SELECT 1", {}, driver)) == "InvalidPasswordError 28P01"
    assert cause_of(ConnectionRefusedError("10.0.0.1:5432")) == "ConnectionRefusedError"
