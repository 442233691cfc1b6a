"""The commands of docs/operate/backup.md exist, and those for PostgreSQL restore what was backed up."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from evenmesh_evaluator.backends.schema import SCHEMA
from evenmesh_kit.storage.sql import SqlDatabase
from tests.support.manifests import build
from tests.support.pages import assert_evenmesh_has, assert_kubectl_has, blocks, commands
from tests.support.postgres import Postgres

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "backup.md").read_text(encoding="utf-8")
COMMANDS = [words for block in blocks(PAGE) for words in commands(block)]


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_each_command_exists(words: list[str]) -> None:
    program, *rest = words
    if program == "kubectl":
        assert_kubectl_has(rest[: rest.index("--")] if "--" in rest else rest)
    else:
        assert program == "evenmesh"
        assert_evenmesh_has(rest)


def test_what_is_scaled_and_backed_up_is_there() -> None:
    built = build("prod")
    claims = {
        f"{claim['metadata']['name']}-{one.name}-0"
        for one in built.workloads("StatefulSet")
        for claim in one.document["spec"]["volumeClaimTemplates"]
    }
    assert {"home-orchestrator-0", "home-reranker-0", "home-retriever-0"} < claims
    scaled = {word for words in COMMANDS if "scale" in words for word in words if "/" in word}
    assert scaled == {"deployment/evaluator"}
    assert built.workload("evaluator").document["spec"]["replicas"] == 2
    assert "--replicas=2" in PAGE
    kinds = {one.name: one.kind for one in built.workloads("StatefulSet")}
    assert kinds["reranker"] == "StatefulSet"


def run(line: str, postgres: Postgres, folder: Path) -> None:
    """Runs what a line runs in the pod of the database, as a shell would here."""
    url = make_url(postgres.url)
    command = line.partition("postgres-0 -- ")[2]
    environment = {**os.environ, "PGHOST": str(url.host), "PGPORT": str(url.port)}
    subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, check=True, timeout=120)


async def test_a_database_is_restored_as_it_was(postgres: Postgres, tmp_path: Path) -> None:
    lines = [line for block in blocks(PAGE) for line in block.splitlines() if " postgres-0 -- " in line]
    taken = [line for line in lines if "pg_dump" in line and "evaluator" in line]
    restored = [line for line in lines if "pg_dump" not in line]
    assert (len(taken), len(restored)) == (1, 3)
    run("postgres-0 -- createdb --username=evenmesh evaluator", postgres, tmp_path)
    url = make_url(postgres.url).set(database="evaluator")

    async def executed(statement: str) -> object:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            found = (await connection.execute(text(statement))).scalar() if "SELECT" in statement else None
            if "SELECT" not in statement:
                await connection.execute(text(statement))
        await engine.dispose()
        return found

    database = SqlDatabase(url, SCHEMA)
    await database.open()
    await database.close()
    await executed("INSERT INTO tenant_usage VALUES ('acme', 1, 2, 3)")
    for line in taken:
        run(line, postgres, tmp_path)
    await executed("DELETE FROM tenant_usage")
    await executed("CREATE TABLE of_a_later_version (x int)")
    for line in restored:
        run(line, postgres, tmp_path)
    database = SqlDatabase(url, SCHEMA)
    await database.open()
    await database.close()
    assert await executed("SELECT num_runs FROM tenant_usage WHERE tenant = 'acme'") == 2
    assert await executed("SELECT to_regclass('of_a_later_version')") is None
