"""URLs of PostgreSQL as providers write them, with parameters of libpq, and TLS to a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from sqlalchemy import make_url, text

from evenmesh.wire.errors import Unavailable
from evenmesh_evaluator.backends.schema import SCHEMA
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.settings import SettingsError, load
from evenmesh_kit.storage.sql import SqlDatabase
from tests.support.postgres import Postgres


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whose certificate the server has."""
    return trustme.CA()


@pytest.fixture(scope="module")
def server(authority: trustme.CA) -> Iterator[Postgres]:
    """A server that speaks TLS."""
    issued = authority.issue_cert("127.0.0.1")
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    made = Postgres(certificate=(chain, issued.private_key_pem.bytes()))
    try:
        made.start()
        yield made
    finally:
        made.end()


async def asked(url: str, statement: str) -> object:
    database = SqlDatabase(make_url(url), SCHEMA)
    await database.open()
    try:
        async with database.read() as connection:
            return await connection.scalar(text(statement))
    finally:
        await database.close()


ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.mark.parametrize(("mode", "encrypted"), [("require", True), ("disable", False)])
async def test_sslmode_says_whether_it_is_encrypted(server: Postgres, mode: str, encrypted: bool) -> None:
    assert await asked(f"{server.url}?sslmode={mode}", ENCRYPTED) is encrypted
    assert await asked(f"{server.url}?ssl={mode}", ENCRYPTED) is encrypted  # the driver's own word


async def test_the_authority_of_the_server_is_checked(
    server: Postgres, authority: trustme.CA, tmp_path: Path
) -> None:
    for name, one in (("right", authority), ("wrong", trustme.CA())):
        one.cert_pem.write_to_path(tmp_path / f"{name}.pem")
    query = f"sslmode=verify-full&sslrootcert={tmp_path}"
    assert await asked(f"{server.url}?{query}/right.pem", ENCRYPTED) is True
    with pytest.raises(Unavailable):
        await asked(f"{server.url}?{query}/wrong.pem", ENCRYPTED)


async def test_the_server_knows_the_name_of_the_application(server: Postgres) -> None:
    assert await asked(f"{server.url}?application_name=e1", "SHOW application_name") == "e1"


def test_a_parameter_that_means_nothing_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the URL, which has a password."""
    url = "postgresql://u:SECRET@db/evaluator?sslmode=require&channel_binding=require"
    monkeypatch.setenv("EVENMESH_EVALUATOR_DATABASE_URL", url)
    with pytest.raises(
        SettingsError, match=r"mean nothing here: channel_binding; there are .*sslmode"
    ) as caught:
        load(EvaluatorSettings)
    assert "SECRET" not in str(caught.value)
