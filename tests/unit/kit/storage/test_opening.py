"""A service waits at its start for a database whose server is away, and for nothing else."""

from __future__ import annotations

import logging
import socket
import sqlite3
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import MetaData

from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.storage import opening
from evenmesh_kit.storage.failures import StoreFailure
from evenmesh_kit.storage.migrations import Schema
from evenmesh_kit.storage.sql import SqlDatabase
from evenmesh_kit.storage.sql_settings import DatabaseSettings


class KeptSettings(DatabaseSettings):
    """Settings of a service with a database."""

    DATABASE_FILE: ClassVar[str] = "kept.db"


class ServerError(Exception):
    """An error of PostgreSQL with its code."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("something that may hold a secret")
        self.sqlstate = sqlstate


class Opening:
    """What is opened, once it has failed so many times.

    Args:
        fails: the errors of the first times.
    """

    def __init__(self, *fails: BaseException) -> None:
        self._fails: Iterator[BaseException] = iter(fails)
        self.times = 0

    async def __call__(self) -> None:
        self.times += 1
        for cause in self._fails:
            raise StoreFailure(cause, "the database of tests") from cause


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_PAUSE_S", 0.001)


def settings(tmp_path: Path, wait_s: float = 3_600.0) -> KeptSettings:
    return KeptSettings(home=tmp_path, database_url="postgresql://u:SECRET@db/x", database_wait_s=wait_s)


async def test_it_waits_for_a_server_that_is_not_there_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name is not known, nobody listens, it starts, it stops, it has no place: each may end by itself."""
    away = (
        socket.gaierror(-2, "Name or service not known"),
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError(),
        ServerError("57P03"),
        ServerError("57P01"),
        ServerError("08006"),
        ServerError("53300"),
    )
    opens = Opening(*away)
    with caplog.at_level(logging.WARNING, "evenmesh.kit.storage"):
        await opening.opened(settings(tmp_path), opens)
    assert opens.times == len(away) + 1
    assert [one.getMessage() for one in caplog.records] == ["waiting for the database"] * len(away)
    for one in caplog.records:
        assert "EVENMESH_DATABASE_URL" in one.__dict__["why"]
        assert 0 < one.__dict__["longest_s"] <= 3_600
        assert "SECRET" not in str(one.__dict__)


@pytest.mark.parametrize(
    "cause",
    [
        ServerError("28P01"),  # wrong password
        ServerError("3D000"),  # no such database
        ServerError("42501"),  # no rights
        ssl.SSLCertVerificationError("certificate verify failed"),
        sqlite3.OperationalError("unable to open database file"),
    ],
)
async def test_it_does_not_wait_where_waiting_helps_nothing(tmp_path: Path, cause: BaseException) -> None:
    opens = Opening(cause)
    with pytest.raises(ServerStartError) as failed:
        await opening.opened(settings(tmp_path), opens)
    assert opens.times == 1
    assert "SECRET" not in str(failed.value)


async def test_a_file_that_cannot_be_made_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    sqlite = KeptSettings(home=tmp_path, database_url=f"sqlite:///{tmp_path}/file/x.db")
    schema = Schema(MetaData(), tmp_path, "versions", lambda _: None, "tests")
    database = SqlDatabase(sqlite.database(), schema)
    with pytest.raises(ServerStartError, match="cannot make the folder"):
        await opening.opened(sqlite, database.open)


async def test_its_patience_ends(tmp_path: Path) -> None:
    opens = Opening(*(ConnectionRefusedError() for _ in range(10_000)))
    with pytest.raises(ServerStartError, match="EVENMESH_DATABASE_URL says where it is"):
        await opening.opened(settings(tmp_path, wait_s=0.1), opens)
    assert opens.times > 1


async def test_a_service_need_not_wait(tmp_path: Path) -> None:
    opens = Opening(ConnectionRefusedError())
    with pytest.raises(ServerStartError):
        await opening.opened(settings(tmp_path, wait_s=0), opens)
    assert opens.times == 1
