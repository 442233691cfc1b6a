"""A whole mesh behind TLS that asks who calls: each credential opens what it is for, and its tenant's alone."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import httpx2
import openai
import pytest
from cryptography import x509
from google.protobuf.descriptor import MethodDescriptor
from prometheus_client.parser import text_string_to_metric_families

from evenmesh import Addresses, Client, Done, Passage
from evenmesh.local_mesh import read_running
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import MeshError, PermissionDenied, Unauthenticated
from evenmesh_mesh import SERVICES, MeshSettings, stop
from tests.support.command_line import run_here
from tests.support.detached_mesh import launch_for_tests
from tests.support.gateway_process import GatewayProcess
from tests.support.go_tools import said_in_go
from tests.support.methods import METHODS, calls_of
from tests.support.prometheus import reserved_ports
from tests.support.started import refusal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

PASSAGE = Passage(
    id="p1", title="Otters", text="Otters hold hands while they sleep, so that they stay together."
)
QUESTION = "What do otters do while they sleep?"
EMPTY_MESSAGES = b"\x0a\x00" * (31 * 2**19)
"""31 MiB, which take 30 times as much when they are decoded."""
COMPRESSED = 2**23
"""What is sent compressed, which costs time: decoded, four times what a service may take meanwhile. Bytes."""
AT_ONCE = 24
"""Calls at a time: three times as many as may be on their way before their caller is known."""


@dataclass(frozen=True)
class Secured:
    """A mesh, and what callers need."""

    addresses: Addresses
    folder: Path
    keys: dict[str, str]
    pages: Mapping[str, str]
    """Where each service shows its metrics."""


def command(home: Path, *arguments: str) -> str:
    """Run ``evenmesh`` in this process and give what it printed."""
    ended = run_here(home, *arguments)
    assert ended.status == 0, ended
    return ended.out.strip()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The mesh: mutual TLS between its services, keys for those who call."""
    folder = tmp_path_factory.mktemp("secured")
    certs, file, home = folder / "certs", folder / "keys.toml", folder / "home"
    command(home, "certs", "dev", "--output", str(certs))
    keys = {
        name: command(
            home,
            *("keys", "new", name, "--file", str(file)),
            *(("--tenant", tenant) if tenant else ()),
            *(part for role in roles for part in ("--role", role)),
        )
        for name, tenant, roles in (
            ("mesh", "", ["service"]),
            ("asker", "acme", ["ask"]),
            ("keeper", "acme", ["ask", "ingest"]),
            ("stranger", "other", ["ask", "ingest"]),
        )
    }
    environment = {
        "EVENMESH_TLS_CERT": str(certs / "orchestrator.pem"),
        "EVENMESH_TLS_KEY": str(certs / "orchestrator-key.pem"),
        "EVENMESH_TLS_CA": str(certs / "ca.pem"),
        "EVENMESH_API_KEYS": str(file),
        "EVENMESH_API_KEY": keys["mesh"],
    }
    with reserved_ports(len(SERVICES)) as ports:
        shown = {one.name: port for one, port in zip(SERVICES, ports, strict=True)}
        environment |= {f"{one.prefix}METRICS_PORT": str(shown[one.name]) for one in SERVICES}
        state = launch_for_tests(MeshSettings(home=home, port=0, start_s=600, environment=environment))
        try:
            pages = {name: f"http://127.0.0.1:{port}/metrics" for name, port in shown.items()}
            yield Secured(Addresses(**state.addresses), certs, keys, pages)
        finally:
            stop(home)


def client(secured: Secured, monkeypatch: pytest.MonkeyPatch, key: str | None) -> Client:
    """A client with that key."""
    monkeypatch.setenv("EVENMESH_TLS_CA", str(secured.folder / "ca.pem"))
    if key is None:
        monkeypatch.delenv("EVENMESH_API_KEY", raising=False)
    else:
        monkeypatch.setenv("EVENMESH_API_KEY", key)
    return Client(secured.addresses, timeout=240)


def test_each_credential_opens_its_own(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(secured, monkeypatch, secured.keys["keeper"]) as keeper:
        keeper.ingest([PASSAGE], "zoo")
    with client(secured, monkeypatch, secured.keys["asker"]) as asker:
        full = asker.answer(QUESTION, collection="zoo", run_id="night", run_report=True)
        assert full.retrieved is not None
        assert [passage.id for passage in full.retrieved.passages] == ["p1"]
        with pytest.raises(PermissionDenied, match="asker needs one of the roles"):
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


@pytest.mark.parametrize("key", [None, "emk_guessed"])
def test_nobody_else_is_let_in(secured: Secured, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    with client(secured, monkeypatch, key) as nobody, pytest.raises(Unauthenticated):
        nobody.collections()


def test_without_tls_there_is_no_connection(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENMESH_TLS_CA", raising=False)
    monkeypatch.setenv("EVENMESH_API_KEY", secured.keys["keeper"])
    with Client(secured.addresses, timeout=20) as plain, pytest.raises(MeshError) as refused:
        plain.collections()
    assert refused.value.reason in ("UNREACHABLE", "UNAVAILABLE")


def reported(url: str) -> dict[tuple[str, str], float]:
    """What a page tells of certificates, by role, and of files that are read again."""
    with urllib.request.urlopen(url, timeout=60) as page:  # noqa: S310 - our own server
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        (sample.name, sample.labels.get("role") or sample.labels["file"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith(("evenmesh_certificate_", "evenmesh_reload_stale"))
    }


def test_every_service_tells_when_its_certificate_ends_and_whether_its_files_are_in_force(
    secured: Secured,
) -> None:
    shown = x509.load_pem_x509_certificate((secured.folder / "orchestrator.pem").read_bytes())
    end, keys = shown.not_valid_after_utc.timestamp(), secured.folder.parent / "keys.toml"
    for name, url in secured.pages.items():
        found = reported(url)
        roles = {
            role: at for (metric, role), at in found.items() if metric.startswith("evenmesh_certificate_")
        }
        callers = {"client": end} if name in ("orchestrator", "reranker") else {}
        assert roles == {"server": end, "authority": roles["authority"], **callers}, name
        files = {file: value for (metric, file), value in found.items() if metric == "evenmesh_reload_stale"}
        models = {"models": 0.0} if name == "reranker" else {}
        assert files == {"certificate": 0.0, "api_keys": 0.0, **models}, name
    good = keys.read_bytes()
    try:
        keys.write_text("[[key")
        for url in secured.pages.values():
            wait_until(lambda url=url: reported(url)["evenmesh_reload_stale", "api_keys"] == 1, why=url)
    finally:
        keys.write_bytes(good)


@pytest.fixture
def environment(secured: Secured) -> dict[str, str]:
    """What a gateway of this mesh is given: a certificate that no service lists, and no key."""
    return {
        "EVENMESH_TLS_CERT": str(secured.folder / "orchestrator.pem"),
        "EVENMESH_TLS_KEY": str(secured.folder / "orchestrator-key.pem"),
        "EVENMESH_TLS_CA": str(secured.folder / "ca.pem"),
    }


@pytest.mark.parametrize("knows_keys", [True, False])
def test_each_credential_opens_the_same_by_http(
    secured: Secured, environment: dict[str, str], tmp_path: Path, knows_keys: bool
) -> None:
    """Whether the gateway knows the keys itself or leaves all of it to the services."""
    if knows_keys:
        environment["EVENMESH_API_KEYS"] = str(secured.folder.parent / "keys.toml")
    # What a service would call with is not the gateway's.
    environment["EVENMESH_API_KEY"] = secured.keys["mesh"]
    context = ssl.create_default_context(cafile=secured.folder / "ca.pem")
    retriever, collections = (
        "/v1/evenmesh.retriever.v1.RetrieverService",
        "/v1/evenmesh.retriever.v1.CollectionService",
    )
    lines = [
        {"collection": "by-http", "createIfMissing": True, "passages": [{"id": "p1", "text": PASSAGE.text}]},
        {"last": True},
    ]
    ingest = {
        "content": "\n".join(map(json.dumps, lines)),
        "headers": {"content-type": "application/x-ndjson"},
    }

    def by(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {secured.keys[name]}"}

    with (
        GatewayProcess(tmp_path, secured.addresses, **environment) as gateway,
        httpx.Client(base_url=f"https://{gateway.address}", verify=context, timeout=240) as http,
    ):
        for headers in ({}, {"authorization": "Bearer emk_guessed"}):
            refused = http.post(f"{collections}/ListCollections", headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        body, given = ingest["content"], ingest["headers"]
        assert (
            http.post(f"{collections}/Ingest", content=body, headers={**given, **by("asker")}).status_code
            == 403
        )
        filled = http.post(f"{collections}/Ingest", content=body, headers={**given, **by("keeper")})
        assert filled.status_code == 200, filled.text
        query = {"query": "otters", "collection": "by-http", "retriever": "bm25-lucene"}
        found = http.post(f"{retriever}/Retrieve", json=query, headers=by("asker")).json()
        assert [one["id"] for one in found["passages"]] == ["p1"]
        assert http.post(f"{retriever}/Retrieve", json=query, headers=by("stranger")).status_code == 404
        # The tenant is the credential's, whatever a header says.
        claimed = {**by("stranger"), "evenmesh-tenant": "acme"}
        assert http.post(f"{retriever}/Retrieve", json=query, headers=claimed).status_code == 404
        with openai.OpenAI(
            base_url=f"https://{gateway.address}/v1",
            api_key=secured.keys["asker"],
            http_client=httpx2.Client(verify=context),
        ) as ai:
            said = [{"role": "user", "content": QUESTION}]
            done = ai.chat.completions.create(model="evenmesh/by-http", messages=said)  # type: ignore[arg-type]
            assert done.choices[0].message.content
            with pytest.raises(openai.AuthenticationError):
                ai.with_options(api_key="emk_guessed").chat.completions.create(
                    model="evenmesh/by-http",
                    messages=said,  # type: ignore[arg-type]
                )
        # Who may ingest is known before files are read, by the gateway or by the retriever that it asks.
        upload, files = (
            "/v1/collections/by-upload/documents",
            {"file": ("a.md", b"# Otters\n\nThey hold hands.\n")},
        )
        for name, status in (("", 401), ("asker", 403), ("keeper", 200)):
            sent = http.post(upload, files=files, headers=by(name) if name else {})
            assert sent.status_code == status, sent.text
        query["collection"] = "by-upload"
        assert http.post(f"{retriever}/Retrieve", json=query, headers=by("asker")).status_code == 200
        assert http.post(f"{retriever}/Retrieve", json=query, headers=by("stranger")).status_code == 404
        http.post(f"{collections}/DeleteCollection", json={"name": "by-upload"}, headers=by("keeper"))
        gone = http.post(f"{collections}/DeleteCollection", json={"name": "by-http"}, headers=by("keeper"))
        assert gone.status_code == 200


def test_a_gateway_with_the_certificate_of_a_service_does_not_start(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment |= {"EVENMESH_TLS_CLIENTS": "required", "EVENMESH_TLS_SERVICES": "orchestrator"}
    assert refusal("gateway", tmp_path, environment).startswith("EVENMESH_TLS_SERVICES=")


def test_the_command_line_is_authenticated_too(secured: Secured) -> None:
    environment = os.environ | {
        "EVENMESH_TLS_CA": str(secured.folder / "ca.pem"),
        "EVENMESH_CLIENT_RETRIEVER_TARGET": secured.addresses.retriever,
    }
    for key, status in ((secured.keys["asker"], 0), ("emk_guessed", 1)):
        done = subprocess.run(
            [sys.executable, "-m", "evenmesh", "collections"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment | {"EVENMESH_API_KEY": key},
        )
        assert done.returncode == status, done.stderr
    assert "not known" in done.stderr


def test_a_client_in_go_says_who_calls_and_reads_why_it_is_refused(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, go_ask: Path
) -> None:
    with client(secured, monkeypatch, secured.keys["keeper"]) as keeper:
        keeper.ingest([PASSAGE], "go")
        asked = keeper.answer(QUESTION, alpha=2, samples=4, seed=11, collection="go", observe=False)
    over_tls = {"EVENMESH_TLS_CA": str(secured.folder / "ca.pem")}
    known = {**over_tls, "EVENMESH_API_KEY": secured.keys["asker"]}
    *_, answered = said_in_go(go_ask, secured.addresses, "go", QUESTION, **known)
    assert answered["text"] == asked.text
    for key, reason in (("emk_guessed", "UNKNOWN_KEY"), ("", "NO_CREDENTIAL")):
        wrong = {**over_tls, "EVENMESH_API_KEY": key}
        (error,) = said_in_go(go_ask, secured.addresses, "go", QUESTION, **wrong)
        assert (error["code"], error["reason"]) == ("Unauthenticated", reason)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")
async def test_unknown_callers_raise_no_services_memory(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send 31 MiB of empty messages to every method at once: decoded, each takes 30 times its size."""
    monkeypatch.setenv("EVENMESH_TLS_CA", str(secured.folder / "ca.pem"))
    monkeypatch.delenv("EVENMESH_API_KEY", raising=False)
    state = read_running(secured.folder.parent / "home")
    assert state is not None
    for name, address in secured.addresses.items():
        pid = state.services[name].pid
        assert pid is not None
        methods = [one for one in METHODS.values() if one.containing_service.full_name.split(".")[1] == name]
        async with connect(address, service=methods[0].containing_service.full_name, retry=False) as channel:
            await refused(channel, methods[0], b"")
            before = peak_mib(pid, reset=True)
            await asyncio.gather(
                *(
                    refused(channel, one, EMPTY_MESSAGES)
                    for one in (methods * AT_ONCE)[: max(AT_ONCE, len(methods))]
                ),
            )
            for one in methods:
                await refused(channel, one, EMPTY_MESSAGES[:COMPRESSED], grpc.Compression.Gzip)
            assert peak_mib(pid) - before < 64, name


async def refused(
    channel: grpc.aio.Channel,
    method: MethodDescriptor,
    data: bytes,
    compression: grpc.Compression | None = None,
) -> None:
    """Make a call, which must be refused."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = calls_of(channel, method)
    request = iter([data]) if method.client_streaming else data
    status = await kind(path)(request, timeout=300, compression=compression).code()
    # A caller that still writes when its call ends may see the end of its writes instead of the status.
    also = (grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED) if method.client_streaming else ()
    assert status in (grpc.StatusCode.UNAUTHENTICATED, *also), path


def peak_mib(pid: int, *, reset: bool = False) -> float:
    """Return the most memory that a process has had, since the last reset. MiB."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
