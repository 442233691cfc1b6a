"""Connect and gRPC-Web: by the official client, and byte for byte."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from connectrpc.client import ConnectClient
from connectrpc.code import Code
from connectrpc.compat import google_protobuf_binary_codec, google_protobuf_json_codec
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.protocol import ProtocolType
from google.rpc import error_details_pb2

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.errors import Overloaded
from evenmesh_gateway import connect_rpc
from evenmesh_gateway.methods import public_methods
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.scripted import ScriptedMesh
from tests.unit.gateway.conftest import Open

ASK = "/evenmesh.orchestrator.v1.OrchestratorService/Ask"
RETRIEVE = "/evenmesh.retriever.v1.RetrieverService/Retrieve"
INGEST = "/evenmesh.retriever.v1.CollectionService/Ingest"


def info(path: str) -> MethodInfo[Any, Any]:
    method = public_methods()[path]
    kinds = {
        (False, False): StreamType.UNARY,
        (False, True): StreamType.SERVER_STREAM,
        (True, False): StreamType.CLIENT_STREAM,
    }
    return MethodInfo(
        name=method.descriptor.name,
        service_name=method.service,
        input=method.request,
        output=method.reply,
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=kinds[method.streams_requests, method.streams_replies],
    )


def client_of(gateway: httpx.AsyncClient, protocol: ProtocolType, codec: str = "proto") -> ConnectClient:
    return ConnectClient(
        str(gateway.base_url).rstrip("/"),
        protocol=protocol,
        codec=google_protobuf_json_codec() if codec == "json" else google_protobuf_binary_codec(),
    )


every_protocol = pytest.mark.parametrize("protocol", [ProtocolType.CONNECT, ProtocolType.GRPC_WEB])


@every_protocol
@pytest.mark.parametrize("codec", ["json", "proto"])
async def test_calls_of_every_kind(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, protocol: ProtocolType, codec: str
) -> None:
    client = client_of(gateway, protocol, codec)
    found = await client.execute_unary(
        request=retriever_pb.RetrieveRequest(query="oil"), method=info(RETRIEVE)
    )
    assert [one.id for one in found.passages] == ["p1", "p2", "p3"]

    request = orchestrator_pb.AskRequest(question="q")
    events = [one async for one in client.execute_server_stream(request=request, method=info(ASK))]
    assert events == scripted.orchestrator.events

    async def parts() -> AsyncIterator[collection_pb.IngestRequest]:
        yield collection_pb.IngestRequest(collection="zoo", passages=[{"id": "p1", "text": "Otters"}])
        yield collection_pb.IngestRequest(last=True)

    done = await client.execute_client_stream(request=parts(), method=info(INGEST))
    assert done.added == 1


@every_protocol
async def test_an_error_has_its_details(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, protocol: ProtocolType
) -> None:
    client = client_of(gateway, protocol)
    scripted.retriever.error = Overloaded("too much work is in flight", 1.5)
    with pytest.raises(ConnectError) as refused:
        await client.execute_unary(request=retriever_pb.RetrieveRequest(query="q"), method=info(RETRIEVE))
    assert (refused.value.code, refused.value.message) == (
        Code.RESOURCE_EXHAUSTED,
        "too much work is in flight",
    )
    details = {one.type_name.rpartition(".")[2]: one.message_bytes for one in refused.value.details}
    assert error_details_pb2.ErrorInfo.FromString(details["ErrorInfo"]).reason == "OVERLOADED"
    assert error_details_pb2.RetryInfo.FromString(
        details["RetryInfo"]
    ).retry_delay.ToTimedelta() == timedelta(seconds=1.5)
    with pytest.raises(ConnectError) as invalid:
        request = orchestrator_pb.AskRequest(question=" ")
        [one async for one in client.execute_server_stream(request=request, method=info(ASK))]
    assert invalid.value.code is Code.INVALID_ARGUMENT


async def test_plain_http_learns_when_to_come_again(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.retriever.error = Overloaded("too much work is in flight", 1.5)
    reply = await gateway.post(RETRIEVE, json={"query": "q"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert reply.json()["code"] == "resource_exhausted"


@every_protocol
async def test_strangers_are_refused(
    open_gateway: Open, tmp_path: Path, scripted: ScriptedMesh, protocol: ProtocolType
) -> None:
    key, digest = new_key()
    add_entry(tmp_path / "k.toml", KeyEntry(name="a", sha256=digest, tenant="acme", roles=["ask"]))
    client = client_of(await open_gateway(api_keys=tmp_path / "k.toml"), protocol)
    request = retriever_pb.RetrieveRequest(query="q")
    for headers in ({}, {"authorization": "Bearer emk_guessed"}):
        with pytest.raises(ConnectError) as refused:
            await client.execute_unary(request=request, method=info(RETRIEVE), headers=headers)
        assert refused.value.code is Code.UNAUTHENTICATED
    mine = {"authorization": f"Bearer {key}"}
    await client.execute_unary(request=request, method=info(RETRIEVE), headers=mine)
    (seen,) = scripted.retriever.metadata
    assert (seen["authorization"], seen["evenmesh-tenant"]) == (f"Bearer {key}", "acme")


@every_protocol
async def test_a_deadline_ends_the_call(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, protocol: ProtocolType
) -> None:
    scripted.orchestrator.hang, scripted.orchestrator.events = True, []
    client = client_of(gateway, protocol)
    request = orchestrator_pb.AskRequest(question="q")
    # On a busy machine a short time may be over before the call has arrived.
    for timeout_ms in (200, 2_000, 20_000):
        with pytest.raises(ConnectError) as late:
            stream = client.execute_server_stream(request=request, method=info(ASK), timeout_ms=timeout_ms)
            [one async for one in stream]
        assert late.value.code is Code.DEADLINE_EXCEEDED
        if scripted.orchestrator.requests:
            break
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


async def test_a_client_that_hangs_up_ends_the_call(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.hang = True
    message = json.dumps({"question": "q"}).encode()
    body = struct.pack(">BI", 0, len(message)) + message
    headers = {"content-type": "application/connect+json"}
    async with gateway.stream("POST", ASK, content=body, headers=headers) as reply:
        async for _ in reply.aiter_bytes():
            break
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


async def test_a_message_is_bounded(open_gateway: Open) -> None:
    client = client_of(await open_gateway(max_body_bytes=1024), ProtocolType.CONNECT)
    with pytest.raises(ConnectError) as refused:
        request = retriever_pb.RetrieveRequest(query="q" * 1025)
        await client.execute_unary(request=request, method=info(RETRIEVE))
    assert refused.value.code is Code.RESOURCE_EXHAUSTED


async def test_grpc_itself_is_sent_elsewhere(gateway: httpx.AsyncClient) -> None:
    reply = await gateway.post(RETRIEVE, content=b"", headers={"content-type": "application/grpc"})
    assert (reply.status_code, reply.json()["reason"]) == (415, "UNSUPPORTED_TYPE")


@every_protocol
async def test_a_stream_may_last_as_long_as_its_call(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch, protocol: ProtocolType
) -> None:
    """Once it is known who calls, the call's deadline counts, and not that of strangers."""
    monkeypatch.setattr(connect_rpc, "_TO_ENTER_S", 0.0)
    gateway = await open_gateway()

    async def parts() -> AsyncIterator[collection_pb.IngestRequest]:
        yield collection_pb.IngestRequest(collection="slow", passages=[{"id": "p1", "text": "Oil"}])
        yield collection_pb.IngestRequest(last=True)

    client = client_of(gateway, protocol)
    reply = await client.execute_client_stream(request=parts(), method=info(INGEST))
    assert reply.added == 1
