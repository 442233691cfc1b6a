"""A whole mesh behind TLS that asks who calls: each credential opens what it is for, and its tenant's alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshkit.errors import MeshError, PermissionDenied, Unauthenticated
from ragmesh import Addresses, Client, Done, Passage
from ragmesh.mesh import MeshSettings, launch, stop

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

PASSAGE = Passage(
    id="p1", title="Otters", text="Otters hold hands while they sleep, so that they stay together."
)
QUESTION = "What do otters do while they sleep?"


@dataclass(frozen=True)
class Secured:
    """A mesh, and what callers need."""

    addresses: Addresses
    folder: Path
    keys: dict[str, str]


def command(*arguments: str) -> str:
    """Runs ``ragmesh`` and gives what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "ragmesh", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The mesh: mutual TLS between its services, keys for those who call."""
    folder = tmp_path_factory.mktemp("secured")
    certs, file, home = folder / "certs", folder / "keys.toml", folder / "home"
    command("certs", "dev", "--output", str(certs))
    keys = {
        name: command(
            *("keys", "new", name, "--tenant", tenant, "--file", str(file)),
            *(part for role in roles for part in ("--role", role)),
        )
        for name, tenant, roles in (
            ("mesh", "default", ["service"]),
            ("asker", "acme", ["ask"]),
            ("keeper", "acme", ["ask", "ingest"]),
            ("stranger", "other", ["ask", "ingest"]),
        )
    }
    environment = {
        "RAGMESH_TLS_CERT": str(certs / "orchestrator.pem"),
        "RAGMESH_TLS_KEY": str(certs / "orchestrator-key.pem"),
        "RAGMESH_TLS_CA": str(certs / "ca.pem"),
        "RAGMESH_API_KEYS": str(file),
        "RAGMESH_API_KEY": keys["mesh"],
    }
    state = launch(MeshSettings(home=home, port=0, start_s=600, environment=environment))
    try:
        yield Secured(Addresses(**state.addresses), certs, keys)
    finally:
        stop(home)


def client(secured: Secured, monkeypatch: pytest.MonkeyPatch, key: str | None) -> Client:
    """A client with that key."""
    monkeypatch.setenv("RAGMESH_TLS_CA", str(secured.folder / "ca.pem"))
    if key is None:
        monkeypatch.delenv("RAGMESH_API_KEY", raising=False)
    else:
        monkeypatch.setenv("RAGMESH_API_KEY", key)
    return Client(secured.addresses, timeout=240)


def test_each_credential_opens_its_own(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(secured, monkeypatch, secured.keys["keeper"]) as keeper:
        keeper.ingest([PASSAGE], "zoo")
    with client(secured, monkeypatch, secured.keys["asker"]) as asker:
        full = asker.answer(QUESTION, collection="zoo", run_id="night", run_report=True)
        assert full.retrieved is not None
        assert [passage.id for passage in full.retrieved.passages] == ["p1"]
        with pytest.raises(PermissionDenied, match="asker may not"):
            asker.ingest([PASSAGE], "zoo")
        # What was observed went by the outbox, and is the asker's.
        assert full.report is not None
        assert full.report.run is not None
        assert [(run.run_id, run.num_observations) for run in asker.runs()] == [("night", 1)]
        *_, done = asker.audit(QUESTION, collection="zoo", run_id="audited", useful=["p1"], samples=2)
        assert isinstance(done, Done)
        while len(runs := asker.runs()) < 2:  # an audit is observed when it is over
            time.sleep(0.1)
        assert {run.run_id for run in runs} == {"night", "audited"}
    # The same name is another collection for another tenant, through the orchestrator too.
    with client(secured, monkeypatch, secured.keys["stranger"]) as stranger:
        assert [one.name for one in stranger.collections()] == []
        with pytest.raises(MeshError) as refused:
            stranger.answer(QUESTION, collection="zoo")
        assert refused.value.reason == "NOT_FOUND"
        with pytest.raises(MeshError) as refused:
            list(stranger.audit(QUESTION, collection="zoo", run_id="audited", useful=["p1"], samples=2))
        assert refused.value.reason == "NOT_FOUND"
        assert stranger.runs() == []
        for run in ("night", "audited"):
            with pytest.raises(MeshError) as unknown:
                stranger.report(run)
            assert unknown.value.reason == "NOT_FOUND"


@pytest.mark.parametrize("key", [None, "rmk_guessed"])
def test_nobody_else_is_let_in(secured: Secured, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    with client(secured, monkeypatch, key) as nobody, pytest.raises(Unauthenticated):
        nobody.collections()


def test_without_tls_there_is_no_connection(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAGMESH_TLS_CA", raising=False)
    monkeypatch.setenv("RAGMESH_API_KEY", secured.keys["keeper"])
    with Client(secured.addresses, timeout=20) as plain, pytest.raises(MeshError) as refused:
        plain.collections()
    assert refused.value.reason in ("UNREACHABLE", "UNAVAILABLE")


def test_the_command_line_goes_through_the_same_door(secured: Secured) -> None:
    environment = os.environ | {
        "RAGMESH_TLS_CA": str(secured.folder / "ca.pem"),
        "RAGMESH_CLIENT_RETRIEVER_TARGET": secured.addresses.retriever,
    }
    for key, status in ((secured.keys["asker"], 0), ("rmk_guessed", 1)):
        done = subprocess.run(
            [sys.executable, "-m", "ragmesh", "collections"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment | {"RAGMESH_API_KEY": key},
        )
        assert done.returncode == status, done.stderr
    assert "not known" in done.stderr
