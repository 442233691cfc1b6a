"""Memory of the bodies of requests is bounded, for all callers together and for each tenant."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_gateway.http.bodies import timely
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.scripted import ScriptedMesh
from tests.unit.gateway.conftest import Open

SERVICE = "evenmesh.retriever.v1.RetrieverService/Retrieve"
MIB = 2**20
LARGE = json.dumps({"query": "oil", "streamId": "x" * 1_500_000}).encode()


async def _begun(gateway: httpx.AsyncClient, path: str, size: int, key: str = "") -> asyncio.StreamWriter:
    """Begin a request of ``size`` bytes, and send a part of them."""
    _, writer = await asyncio.open_connection(gateway.base_url.host, gateway.base_url.port)
    credential = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{credential}"
    writer.write(f"{head}content-length: {size}\r\n\r\n".encode() + b" " * 300_000)
    await writer.drain()
    return writer


@pytest.mark.parametrize("path", [f"/v1/{SERVICE}", f"/{SERVICE}"], ids=["rest", "connect"])
async def test_bodies_of_all_callers_share_a_bound(
    open_gateway: Open, scripted: ScriptedMesh, path: str
) -> None:
    gateway = await open_gateway(max_decoded_bytes=16 * MIB, queue_s=0.05)
    begun = [await _begun(gateway, path, 15 * MIB // 2) for _ in range(2)]
    json_type = {"content-type": "application/json"}

    async def refused() -> httpx.Response:
        # Until the server has read what was sent.
        async with asyncio.timeout(30):
            while (reply := await gateway.post(path, content=LARGE, headers=json_type)).status_code != 429:
                await asyncio.sleep(0.05)
        return reply

    reply = await refused()
    assert "bytes of requests" in reply.text
    # Small requests count nothing, and the large one fits once the others are gone.
    assert (await gateway.post(path, json={"query": "oil"})).status_code == 200
    for one in begun:
        one.close()
    async with asyncio.timeout(30):
        while (reply := await gateway.post(path, content=LARGE, headers=json_type)).status_code == 429:
            await asyncio.sleep(0.05)
    assert reply.status_code != 500, reply.text


async def test_a_tenant_leaves_room_for_the_others(
    open_gateway: Open, scripted: ScriptedMesh, tmp_path: Path
) -> None:
    path, keys = tmp_path / "keys.toml", {}
    for tenant in ("acme", "other"):
        keys[tenant], digest = new_key()
        add_entry(path, KeyEntry(name=tenant, sha256=digest, tenant=tenant, roles=["ask"]))
    gateway = await open_gateway(api_keys=path, max_decoded_bytes=16 * MIB, tenant_share=0.25, queue_s=0.05)
    begun = await _begun(gateway, f"/v1/{SERVICE}", 4 * MIB - 1, keys["acme"])

    async def post(tenant: str) -> int:
        headers = {"authorization": f"Bearer {keys[tenant]}", "content-type": "application/json"}
        text = b'{"query": "oil", "stream_id": "' + b"x" * 200_000 + b'"}'
        return (await gateway.post(f"/v1/{SERVICE}", content=text, headers=headers)).status_code

    async with asyncio.timeout(30):
        while await post("acme") != 429:
            await asyncio.sleep(0.05)
    assert await post("other") == 400, "its stream id is too long, as the service says"
    begun.close()


async def test_an_ingest_holds_only_what_it_has_not_sent_on(open_gateway: Open) -> None:
    """Its body is larger than the memory of all bodies."""
    gateway = await open_gateway(max_decoded_bytes=16 * MIB, queue_s=0.05)
    passages = [{"id": f"p{at}", "text": "x" * 50_000} for at in range(400)]
    lines = [{"collection": "large", "createIfMissing": True}, *({"passages": [one]} for one in passages)]
    body = "\n".join(map(json.dumps, [*lines, {"last": True}]))
    assert len(body) > 16 * MIB
    reply = await gateway.post(
        "/v1/evenmesh.retriever.v1.CollectionService/Ingest",
        content=body,
        headers={"content-type": "application/x-ndjson"},
    )
    assert reply.json()["added"] == "400", reply.text


@pytest.mark.parametrize(
    ("path", "media", "first"),
    [
        ("/v1/evenmesh.retriever.v1.CollectionService/Ingest", "application/x-ndjson", b""),
        (
            "/evenmesh.retriever.v1.CollectionService/Ingest",
            "application/connect+proto",
            b"\0" + (20 * MIB).to_bytes(4, "big"),
        ),
    ],
    ids=["lines", "envelopes"],
)
async def test_what_is_not_whole_of_a_stream_counts(
    open_gateway: Open, path: str, media: str, first: bytes
) -> None:
    """A line, and a message of Connect, of which seven megabytes are here: the third does not fit."""
    gateway = await open_gateway(max_decoded_bytes=16 * MIB, queue_s=0.05)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media}\r\n"
    replies = []
    writers = []
    for _ in range(4):
        reader, writer = await asyncio.open_connection(gateway.base_url.host, gateway.base_url.port)
        writer.write(f"{head}content-length: {21 * MIB}\r\n\r\n".encode() + first + b" x" * (7 * MIB // 2))
        await writer.drain()
        writers.append(writer)
        replies.append(asyncio.create_task(reader.read(65_536)))
    done, pending = await asyncio.wait(replies, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert b"bytes of requests" in b"".join(one.result() for one in done)
    assert pending, "the others wait for the rest of theirs"
    for one in pending:
        one.cancel()
    for writer in writers:
        writer.close()


async def test_a_small_body_does_not_become_a_large_one(open_gateway: Open) -> None:
    """Zeros become a thousand times as large; texts, as clients compress them, a few times."""
    gateway = await open_gateway()
    zeros = gzip.compress(bytes(20 * MIB))
    for media, body in (
        ("application/proto", zeros),
        ("application/connect+proto", b"\x01" + len(zeros).to_bytes(4, "big") + zeros),
    ):
        stream = media.startswith("application/connect")
        reply = await gateway.post(
            "/evenmesh.retriever.v1.CollectionService/Ingest" if stream else f"/{SERVICE}",
            content=body,
            headers={
                "content-type": media,
                "connect-content-encoding" if stream else "content-encoding": "gzip",
            },
        )
        assert "send it without compression" in reply.text
    text = json.dumps({"query": "oil " * 1000}).encode()
    reply = await gateway.post(
        f"/{SERVICE}",
        content=gzip.compress(text),
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )
    assert reply.status_code == 200, reply.text


async def test_what_is_compressed_counts_as_what_it_may_become(open_gateway: Open) -> None:
    gateway = await open_gateway(max_decoded_bytes=16 * MIB, queue_s=0.05)
    reply = await gateway.post(
        f"/{SERVICE}",
        content=random.Random(0).randbytes(MIB + MIB // 8),
        headers={"content-type": "application/proto", "content-encoding": "gzip"},
    )
    assert reply.status_code == 413 or reply.status_code == 429
    assert "bytes" in reply.text


async def test_a_body_must_come_in_time_and_later_the_client_may_stay() -> None:
    sent = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": False},
    ]

    async def receive() -> Message:
        if sent:
            return sent.pop(0)
        return {"type": "http.disconnect"}

    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    receiving = timely(receive, lambda: Deadline.after(30))
    assert [(await receiving())["body"] for _ in range(2)] == [b"a", b"b"]
    late = timely(silent, lambda: Deadline.after(0))
    with pytest.raises(DeadlineExceeded, match="did not come in time"):
        await late()
    assert (await receiving())["type"] == "http.disconnect"
