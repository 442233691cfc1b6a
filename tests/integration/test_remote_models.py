"""Retriever and reranker whose models are on servers of other projects."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.reranker.v1.reranker_service_pb2_grpc import RerankerServiceStub
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1.collection_service_pb2_grpc import CollectionServiceStub
from evenmesh.retriever.v1.retriever_service_pb2_grpc import RetrieverServiceStub
from evenmesh.wire.errors import FailedPrecondition, from_rpc_error
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.options import RemoteOptions
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.__main__ import RetrieverService
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.dense.remote_encoder import RemoteEncoder
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.settings import RetrieverSettings
from tests.support import model_server, started, tei_grpc_server
from tests.support.scripted_http import (
    HttpReply,
    HttpRequest,
    Script,
    ScriptedHttp,
    in_thread,
    replying,
    serving,
)
from tests.support.started import environment, refusal

WAIT_S = 60.0
TEXTS = ("oil the chain", "worn brake pads squeal", "a red lamp at night")


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Vectors of words: texts that share some are close."""
    vectors = np.zeros((len(texts), 64)) + 0.01
    for row, text in enumerate(texts):
        for word in text.split():
            vectors[row, zlib.crc32(word.encode()) % 64] += 1.0
    return vectors.tolist()


def score(query: str, texts: Sequence[str]) -> list[float]:
    """The share of the query's words that a text has."""
    words = set(query.split())
    return [len(words & set(text.split())) / len(words) for text in texts]


class Server:
    """A server that computes until a test sets another script."""

    def __init__(self, script: Script) -> None:
        self.works = self.script = script

    async def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        await self.script(request, reply)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def health(channel: grpc.aio.Channel, expected: int) -> None:
    """Wait until a service has a health."""
    stub = health_pb2_grpc.HealthStub(channel)
    async with asyncio.timeout(WAIT_S):
        while (await stub.Check(health_pb2.HealthCheckRequest())).status != expected:
            await asyncio.sleep(0.02)


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def open_reranker(
    stack: AsyncExitStack, home: Path, server: ScriptedHttp, **fields: Any
) -> grpc.aio.Channel:
    settings = RerankerSettings(
        **{
            "port": 0,
            "home": home,
            "grace_s": 0,
            "cross_encoder": "",
            "default_reranker": "remote",
            "remote_urls": (server.url,),
            "remote_check_s": 0.1,
            "remote_rest_s": 0.0,
        }
        | fields
    )
    service = RerankerService(settings, Telemetry.disabled())
    mesh_server = await stack.enter_async_context(
        MeshServer("reranker", settings, service, telemetry=Telemetry.disabled())
    )
    return await stack.enter_async_context(grpc.aio.insecure_channel(mesh_server.address))


def rerank(channel: grpc.aio.Channel, **fields: Any) -> Any:
    passages = [common_pb2.Passage(id=f"p{place}", text=text) for place, text in enumerate(TEXTS)]
    request = reranker_pb.RerankRequest(query="brake pads", passages=passages, **fields)
    return RerankerServiceStub(channel).Rerank(request, timeout=WAIT_S)


async def test_the_reranker_of_a_server_is_the_default_and_is_fused(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    server = await stack.enter_async_context(serving(model_server.tei(score=score, model="org/m")))
    channel = await open_reranker(stack, tmp_path, server, remote_fusion=3.0)
    reply = await rerank(channel)
    assert (reply.reranker, reply.model_version, reply.fusion) == ("remote", "org/m@1", 0.0)
    assert list(reply.scores) == [0.0, 1.0, 0.0]
    assert list(reply.order) == [1, 0, 2]
    first = reranker_pb.FirstStage(scores=[1.0, 2.0, 6.0])
    assert (await rerank(channel, first_stage=first)).fusion == 3.0
    assert (await rerank(channel, reranker="none")).reranker == "none"


async def test_the_readiness_of_the_reranker_follows_its_server(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    changing = Server(model_server.tei(score=score))
    server = await stack.enter_async_context(serving(changing))
    channel = await open_reranker(stack, tmp_path, server)
    await health(channel, SERVING)
    changing.script = replying(503, {}, retry_after="4")
    await health(channel, NOT_SERVING)
    with pytest.raises(grpc.aio.AioRpcError) as away:
        await rerank(channel)
    error = from_rpc_error(away.value)
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "REMOTE_UNAVAILABLE")
    # Others do not need the server.
    assert (await rerank(channel, reranker="none")).reranker == "none"
    changing.script = changing.works
    await health(channel, SERVING)


async def test_a_reranker_with_another_default_is_ready_without_its_server(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    server = await stack.enter_async_context(serving(replying(503, {})))
    channel = await open_reranker(stack, tmp_path, server, default_reranker="none")
    await asyncio.sleep(0.3)
    await health(channel, SERVING)
    assert (await rerank(channel)).reranker == "none"


async def open_retriever(
    stack: AsyncExitStack, home: Path, server: ScriptedHttp, **fields: Any
) -> grpc.aio.Channel:
    settings = RetrieverSettings(
        **{
            "port": 0,
            "home": home,
            "grace_s": 0,
            "encoder": "remote",
            "remote_urls": (server.url,),
            "remote_check_s": 0.1,
            "remote_idle_s": 0.5,
        }
        | fields
    )
    mesh_server = await stack.enter_async_context(
        MeshServer("retriever", settings, RetrieverService(settings), telemetry=Telemetry.disabled())
    )
    return await stack.enter_async_context(grpc.aio.insecure_channel(mesh_server.address))


async def ingest(channel: grpc.aio.Channel) -> collections_pb.IngestResponse:
    passages = [common_pb2.Passage(id=f"p{place}", text=text) for place, text in enumerate(TEXTS)]

    async def parts() -> AsyncIterator[collections_pb.IngestRequest]:
        yield collections_pb.IngestRequest(
            collection="c", passages=passages, create_if_missing=True, last=True
        )

    return await CollectionServiceStub(channel).Ingest(parts(), timeout=WAIT_S)


def retrieve(channel: grpc.aio.Channel, query: str = "squeal of brake pads", **fields: Any) -> Any:
    request = retriever_pb.RetrieveRequest(query=query, collection="c", k=1, **fields)
    return RetrieverServiceStub(channel).Retrieve(request, timeout=WAIT_S)


async def test_a_collection_is_embedded_and_searched_on_a_server(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    changing = Server(model_server.tei(embed=embed, model="org/m"))
    server = await stack.enter_async_context(serving(changing))
    channel = await open_retriever(stack, tmp_path, server)
    made = (await ingest(channel)).collection
    assert (made.encoder, made.embedded) == ("org/m", 1.0)
    reply = await retrieve(channel, retriever="dense")
    assert reply.passages[reply.rankings.indices[0]].id == "p1"
    await health(channel, SERVING)
    changing.script = replying(429, {}, retry_after="4")
    with pytest.raises(grpc.aio.AioRpcError) as busy:
        await retrieve(channel, "another query", retriever="dense")
    error = from_rpc_error(busy.value)
    assert (error.code, error.retry_after_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 4.0)
    changing.script = replying(503, {})
    await health(channel, NOT_SERVING)
    # What needs no vector, or has one, is answered.
    assert (await retrieve(channel, "a third query", retriever="bm25-lucene")).passages
    assert (await retrieve(channel, retriever="dense")).passages
    changing.script = changing.works
    await health(channel, SERVING)


async def test_a_retriever_whose_default_needs_no_vectors_is_ready_without_its_server(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    changing = Server(model_server.tei(embed=embed))
    server = await stack.enter_async_context(serving(changing))
    channel = await open_retriever(stack, tmp_path, server, default_retriever="bm25-lucene")
    changing.script = replying(503, {})
    await asyncio.sleep(0.3)
    await health(channel, SERVING)


async def test_vectors_of_another_encoder_are_not_searched(tmp_path: Path) -> None:
    """A collection made with one model has no vector of another, until it is embedded again."""

    def doubled(texts: Sequence[str]) -> list[list[float]]:
        return [row * 2 for row in embed(texts)]

    def remote(url: str) -> RemoteEncoder:
        return RemoteEncoder(RemoteClient(RemoteOptions(urls=(url,))), server="tei")

    async def opened(encoder: RemoteEncoder) -> tuple[SegmentStore, RetrieverCatalogue]:
        catalogue = RetrieverCatalogue(RetrieverSettings(), cache(analyzer), encoder)
        store = SegmentStore(tmp_path, SegmentIndexing(cache(analyzer), encoder), catalogue.prepare)
        await store.start()
        return store, catalogue

    passages = [Passage(f"p{place}", "", text) for place, text in enumerate(TEXTS)]
    with (
        in_thread(model_server.tei(embed=embed, model="org/a")) as first,
        in_thread(model_server.tei(embed=doubled, model="org/b")) as second,
    ):
        one = remote(first.url)
        store, catalogue = await opened(one)
        await store.of(DEFAULT_TENANT).ingest("c", passages, create=True)
        await store.stop()
        one.close()
        other = remote(second.url)
        store, catalogue = await opened(other)
        collections = store.of(DEFAULT_TENANT)
        with collections.lease("c") as before:
            with pytest.raises(FailedPrecondition, match="has a vector of 'org/b' yet") as refused:
                catalogue.retrievers["dense"].search(before, "brake pads", 1)
            assert refused.value.reason == "NOT_EMBEDDED"
        await store.settled()
        assert (collections.describe("c").encoder, collections.describe("c").embedded) == ("org/b", 1.0)
        with collections.lease("c") as after:
            found = catalogue.retrievers["dense"].search(after, "brake pads", 1)
            assert [one.id for one in after.passages(found.rows.tolist())] == ["p1"]
        await store.stop()
        other.close()


_WITHOUT = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "sentence_transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("name", "protocol"), [("retriever", "grpc"), ("reranker", "http"), ("reranker", "grpc")]
)
async def test_a_service_starts_and_answers_without_torch(
    stack: AsyncExitStack, tmp_path: Path, name: str, protocol: str
) -> None:
    model: dict[str, Any] = {"embed": embed} if name == "retriever" else {"score": score}
    if protocol == "grpc":
        url = (await stack.enter_async_context(tei_grpc_server.serving(**model))).url
    else:
        url = (await stack.enter_async_context(serving(model_server.tei(**model)))).url
    chosen = (
        {"ENCODER": "remote"} if name == "retriever" else {"DEFAULT_RERANKER": "remote", "CROSS_ENCODER": ""}
    )
    given = environment(name, tmp_path, {"REMOTE_URLS": url, **chosen})
    command = [sys.executable, "-c", _WITHOUT, f"evenmesh_{name}"]
    process = await asyncio.to_thread(subprocess.Popen, command, env=given, stderr=subprocess.PIPE, text=True)
    stack.callback(process.kill)
    address = await started.serving(process, name, tmp_path, "")
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
    if name == "retriever":
        await ingest(channel)
        reply = await retrieve(channel)
        assert reply.passages[reply.rankings.indices[0]].id == "p1"
    else:
        assert list((await rerank(channel)).order) == [1, 0, 2]
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, WAIT_S) == 0


async def test_a_retriever_whose_server_is_away_ends_in_one_line(tmp_path: Path) -> None:
    settings = {"ENCODER": "remote", "REMOTE_URLS": "http://127.0.0.1:1"}
    said = await asyncio.to_thread(refusal, "retriever", tmp_path, **settings)
    assert "EVENMESH_RETRIEVER_REMOTE_URLS=http://127.0.0.1:1: the model server cannot be reached" in said
    assert "Traceback" not in said
