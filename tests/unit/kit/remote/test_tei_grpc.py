"""Call TEI by gRPC: the shapes of its HTTP interface, and every fault as that status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_kit.remote import tei_pb2 as pb
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.errors import Rejected
from evenmesh_kit.remote.options import RemoteOptionError, RemoteOptions
from evenmesh_kit.remote.tei_grpc import TeiGrpcClient
from tests.support.tei_grpc_server import Fault, serving

NEVER = Deadline.after(3600)
RERANK = {"query": "q", "texts": ["aa", "b"], "raw_scores": False, "return_text": False, "truncate": True}
EMBED = {"inputs": ["aa", "b"], "normalize": True, "truncate": True}


def lengths(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(one)), 1.0] for one in texts]


def scores(_: str, texts: Sequence[str]) -> list[float]:
    return [1 / len(one) for one in texts]


@asynccontextmanager
async def opened(*urls: str, **options: Any) -> AsyncIterator[TeiGrpcClient]:
    client = TeiGrpcClient(
        RemoteOptions(urls, key_setting="KEY_SETTING", urls_setting="URLS_SETTING", **options)
    )
    try:
        yield client
    finally:
        await client.close()


async def failed(fault: Fault, *, deadline: Deadline = NEVER, **options: Any) -> MeshError:
    async with (
        serving(score=scores, fault=fault) as server,
        opened(server.url, **options) as client,
    ):
        with pytest.raises(MeshError) as caught:
            await client.post("/rerank", RERANK, deadline=deadline)
    return caught.value


def aborting(code: grpc.StatusCode, details: str = "") -> Fault:
    async def fault(_: str, __: Any, call: grpc.aio.ServicerContext) -> None:
        await call.abort(code, details)

    return fault


async def test_replies_have_the_shape_of_http(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k-1")
    async with (
        serving(embed=lengths, score=scores, model="org/m") as server,
        opened(server.url, api_key_file=key) as client,
    ):
        assert await client.post("/embed", EMBED, deadline=NEVER) == [[2.0, 1.0], [1.0, 1.0]]
        ranks = await client.post("/rerank", RERANK, deadline=NEVER)
        assert ranks == [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.5}]
        (checked,) = await client.check("/info", deadline=NEVER)
    assert checked.error is None
    assert checked.reply == {
        "model_id": "org/m",
        "model_sha": "1",
        "model_dtype": "float32",
        "model_type": {"embedding": {}},
        "max_input_length": 256,
        "max_client_batch_size": 32,
    }
    embedded = [asked for name, asked, _ in server.asked if name == "Embed"]
    assert sorted(one.inputs for one in embedded) == ["aa", "b"]
    assert all(one.truncate and one.normalize for one in embedded)
    (ranked,) = [asked for name, asked, _ in server.asked if name == "Rerank"]
    assert (ranked.query, list(ranked.texts), ranked.truncate, ranked.raw_scores) == (
        "q",
        ["aa", "b"],
        True,
        False,
    )
    assert {metadata["authorization"] for _, _, metadata in server.asked} == {"Bearer k-1"}


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "OVERLOADED"),
        ("UNAVAILABLE", "UNAVAILABLE", "REMOTE_UNAVAILABLE"),
        ("FAILED_PRECONDITION", "UNAVAILABLE", "REMOTE_UNAVAILABLE"),
        ("INTERNAL", "UNAVAILABLE", "REMOTE_UNAVAILABLE"),
        ("UNKNOWN", "UNAVAILABLE", "REMOTE_UNAVAILABLE"),
        ("INVALID_ARGUMENT", "INVALID_ARGUMENT", "REMOTE_REJECTED"),
        ("UNAUTHENTICATED", "FAILED_PRECONDITION", "REMOTE_KEY_REFUSED"),
        ("PERMISSION_DENIED", "FAILED_PRECONDITION", "REMOTE_KEY_REFUSED"),
        ("UNIMPLEMENTED", "FAILED_PRECONDITION", "REMOTE_NOT_FOUND"),
    ],
)
async def test_each_status_is_that_of_http(code: str, status: str, reason: str) -> None:
    error = await failed(aborting(grpc.StatusCode[code], "batch size 40 > 32"))
    assert (error.code.name, error.reason) == (status, reason)
    assert ("batch size 40 > 32" in error.message) == isinstance(error, Rejected)
    assert "127.0.0.1" not in error.message


async def test_a_key_is_shown_nowhere(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret")
    refused = await failed(aborting(grpc.StatusCode.UNAUTHENTICATED, "bad sk-secret"), api_key_file=key)
    assert "KEY_SETTING" in refused.message
    rejected = await failed(aborting(grpc.StatusCode.INVALID_ARGUMENT, "bad sk-secret"), api_key_file=key)
    assert "bad …" in rejected.message
    assert "sk-secret" not in refused.message + rejected.message


async def test_a_hang_ends_at_the_idle_limit_or_at_the_deadline() -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    silent = await failed(hang, idle_s=0.05)
    assert silent.reason == "REMOTE_SILENT"
    late = await failed(hang, deadline=Deadline.after(0.2))
    assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_server_that_is_not_there_or_ends_is_unavailable() -> None:
    async with opened("grpc://127.0.0.1:1") as client:
        with pytest.raises(MeshError) as caught:
            await client.post("/rerank", RERANK, deadline=NEVER)
        assert caught.value.reason == "REMOTE_UNAVAILABLE"
    begun = asyncio.Event()

    async def hang(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serving(score=scores, fault=hang) as server, opened(server.url) as client:
        call = asyncio.create_task(client.post("/rerank", RERANK, deadline=NEVER))
        await begun.wait()
        await server.server.stop(None)
        with pytest.raises(MeshError) as ended:
            await call
    assert ended.value.reason == "REMOTE_UNAVAILABLE"


async def test_a_reply_that_is_none_or_too_large() -> None:
    def wrong(_: str, texts: Sequence[str]) -> list[float]:
        return [0.5] * 4000

    async with serving(score=wrong) as server, opened(server.url, reply_bytes=1024) as client:
        with pytest.raises(MeshError) as large:
            await client.post("/rerank", RERANK, deadline=NEVER)
    assert large.value.reason == "REMOTE_REPLY_TOO_LARGE"
    async with (
        serving(embed=lambda texts: [[1.0] * 200 for _ in texts]) as server,
        opened(server.url, reply_bytes=1024) as client,
    ):
        # Each of them is within the bound, and both are not.
        with pytest.raises(MeshError) as together:
            await client.post("/embed", EMBED, deadline=NEVER)
    assert together.value.reason == "REMOTE_REPLY_TOO_LARGE"


@pytest.mark.parametrize(("path", "asked"), [("/rerank", RERANK), ("/embed", EMBED)])
async def test_a_reply_of_other_bytes_is_malformed(path: str, asked: dict[str, Any]) -> None:
    async def garbled(*_: Any) -> bytes:
        return b"\xff\xff\xff"

    async with (
        serving(embed=lengths, score=scores, fault=garbled) as server,
        opened(server.url) as client,
    ):
        with pytest.raises(MeshError) as caught:
            await client.post(path, asked, deadline=NEVER)
        (checked,) = await client.check("/info", deadline=NEVER)
    assert (caught.value.code.name, caught.value.reason) == ("UNAVAILABLE", "REMOTE_MALFORMED_REPLY")
    assert isinstance(checked.error, MeshError)
    assert checked.error.reason == "REMOTE_MALFORMED_REPLY"


async def test_a_server_sees_that_a_call_is_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(*_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(embed=lengths, fault=hang) as server, opened(server.url) as client:
        call = asyncio.create_task(client.post("/embed", EMBED, deadline=NEVER))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await ended.wait()


async def test_another_server_answers_for_one_that_fails() -> None:
    away = aborting(grpc.StatusCode.UNAVAILABLE)
    async with (
        serving(score=scores, fault=away) as first,
        serving(score=scores) as second,
        opened(first.url, second.url, rest_s=3600) as client,
    ):
        for _ in range(3):
            await client.post("/rerank", RERANK, deadline=NEVER)
    assert (len(first.asked), len(second.asked)) == (1, 3)


async def test_tls_trusts_the_named_authority_alone(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    chain = b"".join(one.bytes() for one in certificate.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
    trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(str(trusted))
    trustme.CA().cert_pem.write_to_path(str(other))
    async with serving(score=scores, credentials=credentials) as server:
        async with opened(server.url, ca_file=trusted) as client:
            assert len(await client.post("/rerank", RERANK, deadline=NEVER)) == 2
        async with opened(server.url, ca_file=other) as client:
            with pytest.raises(MeshError) as caught:
                await client.post("/rerank", RERANK, deadline=NEVER)
    assert caught.value.reason == "REMOTE_UNAVAILABLE"


@pytest.mark.parametrize("url", ["grpc://h:1/v1", "grpc://", "grpcs://u:p@h:1", "http://h:1"])
def test_addresses_that_are_none_of_grpc_are_refused(url: str) -> None:
    with pytest.raises(RemoteOptionError) as caught:
        TeiGrpcClient(RemoteOptions((url,)))
    assert caught.value.option == "urls"


def test_a_client_of_http_takes_no_address_of_grpc() -> None:
    with pytest.raises(RemoteOptionError, match="http://"):
        RemoteClient(RemoteOptions(("grpc://127.0.0.1:8080",)))


def test_numbers_of_the_fields_are_those_of_tei() -> None:
    """As proto/tei.proto of text-embeddings-inference has them."""
    numbers = {
        (message, field.name): field.number
        for message, found in pb.DESCRIPTOR.message_types_by_name.items()
        for field in found.fields
    }
    assert numbers == {
        ("InfoResponse", "version"): 1,
        ("InfoResponse", "model_id"): 4,
        ("InfoResponse", "model_sha"): 5,
        ("InfoResponse", "model_dtype"): 6,
        ("InfoResponse", "model_type"): 7,
        ("InfoResponse", "max_input_length"): 9,
        ("InfoResponse", "max_client_batch_size"): 12,
        ("EmbedRequest", "inputs"): 1,
        ("EmbedRequest", "truncate"): 2,
        ("EmbedRequest", "normalize"): 3,
        ("EmbedResponse", "embeddings"): 1,
        ("RerankRequest", "query"): 1,
        ("RerankRequest", "texts"): 2,
        ("RerankRequest", "truncate"): 3,
        ("RerankRequest", "raw_scores"): 4,
        ("RerankRequest", "return_text"): 5,
        ("Rank", "index"): 1,
        ("Rank", "score"): 3,
        ("RerankResponse", "ranks"): 1,
    }
