"""Uploads of documents: read by processes of their own, bounded by tenant, and nothing is left of what fails."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest

from evenmesh_documents import attribution
from evenmesh_gateway.http.server import HttpServer
from evenmesh_gateway.uploads import routes
from evenmesh_gateway.uploads.form import address_of
from evenmesh_gateway.uploads.scratch import ScratchFolder
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support import document_files as files
from tests.support.scripted import ScriptedMesh
from tests.support.waiting import until
from tests.unit.gateway.conftest import Open

PATH = "/v1/collections/manuals/documents"
EVENTS = {"accept": "text/event-stream"}
READER = "evenmesh_documents.uploads.process"
"""The module that the processes which read uploads run."""
OIL = b"---\nprovider: Acme\n---\n# Chains\n\nOil the chain every 200 kilometres.\n"
LONG = " ".join(f"word{at}" for at in range(1_000)).encode()
ENDLESS = "pattern:^(a+)+$"
"""A rule that finds no provider in an address of many a's before the end of the universe."""


def form(**contents: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    """A form with files, by name."""
    return [("file", (name, data)) for name, data in contents.items()]


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a reply: their kind, and what each holds."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            data = json.loads(lines["data"])
            name = lines.get("event") or next(iter(data))
            found.append((name, data if "event" in lines else data[name]))
    return found


def left(folder: Path) -> list[str]:
    """What is kept of uploads."""
    return [one.name for one in folder.glob("evenmesh-uploads-*/*") if one.name != "lock"]


def readers() -> list[psutil.Process]:
    """The processes that read uploads of this process, and those that parse for them.

    Other tests of this pytest process may have left processes of their own (a forkserver, a mesh).
    """
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if READER in child.cmdline():
                found += [child, *child.children(recursive=True)]
    return found


async def half_sent(gateway: httpx.AsyncClient, key: str = "", path: str = PATH) -> asyncio.StreamWriter:
    """An upload whose second half does not come."""
    server: HttpServer = gateway.server  # type: ignore[attr-defined]
    host, port = server.address.rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n"
    head += f"authorization: Bearer {key}\r\n" if key else ""
    head += "content-type: multipart/form-data; boundary=b\r\n\r\n"
    part = '--b\r\ncontent-disposition: form-data; name="file"; filename="a.md"\r\n\r\n' + "x" * 1000
    writer.write((head + part).encode())
    await writer.drain()
    return writer


async def test_what_can_be_read_is_added_and_the_rest_is_named(
    open_gateway: Open, scripted: ScriptedMesh, tmp_path: Path
) -> None:
    gateway = await open_gateway(documents_folder=tmp_path)
    scripted.collections.shares = [0.5, 0.75, 1.0]
    inner = {
        "x.md": "# Lamps\n\nA lamp needs a battery.",
        "../y.md": "Odd.",
        "p.jsonl": '{"id": "p", "text": "Bell."}',
    }
    reply = await gateway.post(
        PATH,
        headers=EVENTS,
        files=form(
            **{
                "a.md": OIL,
                "acme/b.html": b"<html><body><h1>Tyres</h1><p>Pump the tyres.</p></body></html>",
                "acme/c.docx": files.word([("Heading 1", "Brakes"), ("Normal", "Check the brakes.")]),
                "acme/größe.pdf": files.pdf([[(11, "Page one.")], [(11, "Tighten the nut.")]]),
                "locked.pdf": files.pdf([[(11, "x")]], encrypted=True),
                "broken.pdf": files.pdf([[(11, "x")]])[:300],
                "bomb.docx": files.zipped({"word/document.xml": b"\0" * (16 << 20)}),
                "all.zip": files.zipped(inner),
                "../out.md": b"Out.",
                "acme/.hidden.md": b"Hidden.",
                "odd.xyz": b"Odd.",
                "empty.md": b"",
            }
        ),
    )
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = events_of(reply.text)
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "received"
    assert list(dict.fromkeys(kinds)) == [
        "received",
        "reading",
        "read",
        "sent",
        "ingested",
        "embedding",
        "end",
    ]
    result = events[-1][1]
    skipped = {one["document"]: one["reason"] for one in result["skipped"]}
    bomb = skipped.pop("bomb.docx")
    assert bomb.startswith("unpacks to ")
    assert skipped == {
        "../out.md": "has a name that leads out of its folder, or is none",
        "acme/.hidden.md": "has a name that begins with a dot",
        "all.zip/../y.md": "has a name that leads out of its archive, or is none",
        "broken.pdf": "is damaged",
        "locked.pdf": "is encrypted",
        "odd.xyz": "has no reader for .xyz",
    }
    assert result["empty"] == ["empty.md"]
    assert {one["name"]: one["passages"] for one in result["providers"]} == {"acme": 3, "Acme": 1}
    assert result["rules"] == {"folder": 3, "field:provider": 1}
    assert (result["withoutProvider"], result["added"], result["collection"]["embedded"]) == (2, 6, 1.0)
    kept = {one.text: dict(one.attributes) for one in scripted.collections.kept["manuals"]}
    assert len(kept) == result["passages"] == 6
    (nut,) = [attributes for text, attributes in kept.items() if "Tighten the nut." in text]
    assert (nut["document"], nut["page"]) == ("acme/größe.pdf", "1-2")
    assert kept["Check the brakes."]["heading"] == "Brakes"
    await until(lambda: not left(tmp_path))
    assert not readers()


async def test_a_dry_run_says_what_would_be_added_and_adds_nothing(
    open_gateway: Open, scripted: ScriptedMesh
) -> None:
    gateway = await open_gateway()
    rules = {"provider": ["pattern:^([a-z]+)-", "value:others"], "attribute": "topic=folder", "size": "64"}
    data = form(**{"bikes/acme-oil.md": OIL, "bikes/notes.txt": b"Ask the shop."})
    reply = await gateway.post(PATH, params={**rules, "dry_run": "true"}, files=data)
    result = reply.json()
    assert result["dryRun"] is True
    assert result["providers"] == [{"name": "others", "passages": 2, "document": "bikes/acme-oil.md"}]
    assert (result["size"], "added" in result) == (64, False)
    assert scripted.collections.kept == {}
    added = (await gateway.post(PATH, params=rules, files=data)).json()
    assert (added["added"], added["dryRun"]) == (2, False)
    assert {one.attributes["topic"] for one in scripted.collections.kept["manuals"]} == {"bikes"}


@pytest.mark.parametrize(
    ("changes", "contents", "status", "words"),
    [
        ({}, {"locked.pdf": files.pdf([[]], encrypted=True)}, 422, "the file is encrypted"),
        (
            {"documents_text_bytes": 2_000},
            {"a.txt": LONG[:1_500], "b.txt": LONG[1_500:3_000]},
            413,
            "more than 2,000 bytes of text",
        ),
    ],
)
async def test_an_upload_of_which_nothing_can_be_added_is_an_error(
    open_gateway: Open,
    scripted: ScriptedMesh,
    changes: dict[str, int],
    contents: dict[str, bytes],
    status: int,
    words: str,
) -> None:
    gateway = await open_gateway(**changes)
    reply = await gateway.post(PATH, files=form(**contents))
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")
    assert words in reply.json()["detail"]
    name, problem = events_of((await gateway.post(PATH, files=form(**contents), headers=EVENTS)).text)[-1]
    assert (name, problem["status"]) == ("error", status)
    assert scripted.collections.kept == {}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("provider=nobody", "provider"),
        ("provider=pattern:(", "provider"),
        ("attribute=topic", "attribute"),
        ("attribute=document=folder", "attribute"),
        ("size=5", "size"),
        ("size=64&size=32", "size"),
        ("size=32&overlap=17", "overlap"),
        ("overlap=1024", "overlap"),
        ("dry_run=maybe", "dry_run"),
        ("base_url=" + "x" * 1025, "base_url"),
        ("&".join(["provider=folder"] * 65), "provider"),
        ("secret-word=1", "query"),
    ],
)
async def test_an_option_outside_its_bounds_is_named_before_anything_is_read(
    gateway: httpx.AsyncClient, query: str, field: str
) -> None:
    reply = await gateway.post(f"{PATH}?{query}", files=form(**{"a.md": OIL}))
    assert (reply.status_code, reply.json()["field"]) == (400, field)
    assert "secret-word" not in reply.text
    assert "nobody" not in reply.text


async def test_patterns_of_a_request_are_compiled_by_the_process_that_reads(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range without case takes milliseconds for each ten bytes: a request of them held up every caller."""
    compiled: list[str] = []
    watched = SimpleNamespace(compile=compiled.append, error=re.error)
    monkeypatch.setattr(attribution, "re", watched)
    slow = "attribute=topic=pattern:" + quote("(?i)(0)[!-\uffff]")
    reply = await gateway.post(f"{PATH}?{slow}", files=form(**{"a.md": OIL}))
    assert reply.status_code == 200
    for query, field in (("provider=pattern:x", "provider"), ("attribute=topic=pattern:(", "attribute")):
        wrong = await gateway.post(f"{PATH}?{query}", files=form(**{"a.md": OIL}))
        assert (wrong.status_code, wrong.json()["field"]) == (400, field)
    many = "&".join(["provider=pattern:(" + "x" * 1000 + ")"] * 5)
    too_many = await gateway.post(f"{PATH}?{many}", files=form(**{"a.md": OIL}))
    assert (too_many.status_code, "4,096 bytes together" in too_many.json()["detail"]) == (400, True)
    assert compiled == []


async def test_what_is_no_form_of_files_is_refused(open_gateway: Open) -> None:
    gateway = await open_gateway(documents_bytes=10_000, documents_files=2)

    async def status(**request: Any) -> tuple[int, str]:
        reply = await gateway.post(PATH, **request)
        return reply.status_code, reply.json()["detail"]

    async def streamed() -> Any:
        for _ in range(20):
            yield b"x" * 1_000

    typed = {"content-type": "multipart/form-data; boundary=b"}
    assert (await status(json={}))[0] == 415
    assert (await status(content=b"x", headers={"content-type": "multipart/form-data"}))[0] == 400
    assert "whole form" in (await status(content=b"--b\r\n", headers=typed))[1]
    assert "whole form" in (await status(content=b"no form at all", headers=typed))[1]
    assert "files alone" in (await status(files=form(**{"a.md": OIL}), data={"provider": "folder"}))[1]
    assert "at most 2 files" in (await status(files=form(**{f"{at}.md": OIL for at in range(3)})))[1]
    assert (await status(content=b"x" * 10_001, headers=typed))[0] == 413
    begun = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.md"\r\n\r\n'

    async def endless() -> Any:
        yield begun
        async for piece in streamed():
            yield piece

    assert (await status(content=endless(), headers=typed))[0] == 413
    assert (
        await gateway.post("/v1/collections/No%20name/documents", files=form(**{"a.md": OIL}))
    ).status_code == 400


async def test_a_gateway_without_readers_says_what_brings_them(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        routes, "find_spec", lambda name: None if name == "evenmesh_documents" else find_spec(name)
    )
    reply = await (await open_gateway()).post(PATH, files=form(**{"a.md": OIL}))
    assert (reply.status_code, reply.headers["content-type"]) == (501, "application/problem+json")
    assert "evenmesh-gateway[documents]" in reply.json()["detail"]
    off = await open_gateway(documents=False)
    assert (await off.post(PATH, files=form(**{"a.md": OIL}))).status_code == 404
    assert "/v1/collections/{collection}/documents" not in (await off.get("/openapi.json")).json()["paths"]


async def test_who_may_not_ingest_is_refused_before_the_files_are_sent(
    open_gateway: Open, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    key, digest = new_key()
    add_entry(path, KeyEntry(name="asker", sha256=digest, tenant="acme", roles=["ask"]))
    gateway = await open_gateway(api_keys=path)
    server: HttpServer = gateway.server  # type: ignore[attr-defined]
    host, port = server.address.rsplit(":", 1)
    for credential, status in ((f"authorization: Bearer {key}\r\n", 403), ("", 401)):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\n{credential}content-length: 5000\r\n"
        writer.write(f"{head}content-type: multipart/form-data; boundary=b\r\n\r\n".encode())
        async with asyncio.timeout(30):
            assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()
    assert not readers()


async def test_a_tenant_leaves_places_for_the_others_and_who_hangs_up_gives_his_back(
    open_gateway: Open, scripted: ScriptedMesh, tmp_path: Path
) -> None:
    path, keys = tmp_path / "keys.toml", {}
    for tenant in ("acme", "other"):
        keys[tenant], digest = new_key()
        add_entry(path, KeyEntry(name=tenant, sha256=digest, tenant=tenant, roles=["ingest"]))
    gateway = await open_gateway(
        api_keys=path, documents_uploads=2, tenant_share=0.5, queue_s=0.05, documents_folder=tmp_path
    )

    async def post(tenant: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {keys[tenant]}"}
        return await gateway.post(
            PATH, files=form(**{"a.md": OIL}), headers=headers, params={"wait": "false"}
        )

    begun = await half_sent(gateway, keys["acme"])
    await until(lambda: left(tmp_path))
    refused = await post("acme")
    assert (refused.status_code, refused.json()["reason"]) == (429, "SHARE_FULL")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await post("other")).status_code == 200
    scripted.collections.kept.clear()
    begun.close()
    await until(lambda: not left(tmp_path) and not readers())
    assert scripted.collections.kept == {}
    assert (await post("acme")).status_code == 200


async def test_who_hangs_up_while_files_are_read_ends_their_processes(
    open_gateway: Open, scripted: ScriptedMesh, tmp_path: Path
) -> None:
    gateway = await open_gateway(documents_folder=tmp_path)
    for headers in ({}, EVENTS):
        sending = asyncio.create_task(
            gateway.post(
                PATH, params={"provider": ENDLESS}, files=form(**{f"{'a' * 60}.md": OIL}), headers=headers
            )
        )
        # The one that reads, and the one that parses for it.
        await until(lambda: len(readers()) == 2)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until(lambda: not readers() and not left(tmp_path))
    assert scripted.collections.kept == {}


async def test_files_that_take_too_long_are_given_up(
    open_gateway: Open, scripted: ScriptedMesh, tmp_path: Path
) -> None:
    gateway = await open_gateway(documents_read_s=0.5, documents_folder=tmp_path)
    reply = await gateway.post(PATH, params={"provider": ENDLESS}, files=form(**{f"{'a' * 60}.md": OIL}))
    assert (reply.status_code, reply.json()["code"]) == (504, "DEADLINE_EXCEEDED")
    await until(lambda: not readers() and not left(tmp_path))
    assert scripted.collections.kept == {}


def test_what_a_killed_gateway_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    living = ScratchFolder(tmp_path)
    killed = tmp_path / "evenmesh-uploads-killed"
    (killed / "u1").mkdir(parents=True)
    (killed / "lock").touch()
    (tmp_path / "evenmesh-uploads-file").touch()
    (tmp_path / "evenmesh-uploads-link").symlink_to(tmp_path)
    following = ScratchFolder(tmp_path)
    assert not killed.exists()
    assert living.path.is_dir()
    with (living.path / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for one in (living, following):
        one.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "evenmesh-uploads-file",
        "evenmesh-uploads-link",
    ]


@pytest.mark.parametrize(
    "name", ["../a.md", "/etc/a.md", "a//b.md", "a\\b.md", "", "a/./b.md", ".a.md", "a/" * 513]
)
def test_a_name_that_is_no_address_is_not_read(name: str) -> None:
    address, reason = address_of(name)
    assert reason.startswith("has a name ")
    assert len(address.encode()) <= 200


def test_an_address_has_no_character_that_steers_a_terminal() -> None:
    assert address_of("a\x1b[2J\n.md") == ("a%1B[2J%0A.md", "")
