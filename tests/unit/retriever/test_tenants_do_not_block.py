"""Over gRPC: what one tenant asks for does not keep another one waiting, and is bounded."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import grpc
import numpy as np
import pytest

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.retriever.v1.collection_service_pb2_grpc import (
    CollectionServiceStub,
    add_CollectionServiceServicer_to_server,
)
from evenmesh.retriever.v1.retriever_service_pb2_grpc import (
    RetrieverServiceStub,
    add_RetrieverServiceServicer_to_server,
)
from evenmesh.wire.errors import MeshError, from_rpc_error
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_retriever.__main__ import COLLECTION_NAME, RETRIEVER_NAME
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.embedding import Embedder
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.ingest_admission import IngestAdmission
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.servicer import CollectionServicer, RetrieverServicer
from evenmesh_retriever.settings import RetrieverSettings
from evenmesh_retriever.web import WebRetrieval
from tests.support.lifecycle import Idle
from tests.support.waiting import until

GUARD_S = 120
LOUD, QUIET = (("evenmesh-tenant", "loud"),), (("evenmesh-tenant", "quiet"),)


class HeldEncoder:
    """Encodes passages of the word slow when it is let go on; counts the batches."""

    name = fingerprint = "held"
    dimension = 4
    device, precision = "cpu", "fp32"
    max_tokens = 256

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.batches = 0
        self.queries: list[str] = []

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(min(256, len(text.replace(" ", ""))) for text in texts)  # a letter is a token

    def encode_query(self, text: str) -> VectorArray:
        self.queries.append(text)
        return np.full(4, 0.5, dtype=np.float32)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        self.batches += 1
        if any("slow" in text for text in texts):
            self.began.set()
            assert self.go.wait(GUARD_S)
        progress(len(texts))
        return np.full((len(texts), 4), 0.5, dtype=np.float32)


class Mesh:
    """A retriever that serves over gRPC, and two clients of it."""

    def __init__(
        self,
        server: MeshServer,
        channel: grpc.aio.Channel,
        encoder: HeldEncoder,
        ingests: IngestAdmission,
        listings: TenantShares,
    ) -> None:
        self.listings = listings
        self.server = server
        self.ingests = ingests
        self.encoder = encoder
        self.retriever = RetrieverServiceStub(channel)
        self.collections = CollectionServiceStub(channel)

    def ask(self, metadata: tuple[tuple[str, str], ...], passages: Sequence[Passage], retriever: str):  # type: ignore[no-untyped-def]
        request = pb.RetrieveRequest(
            query="fox", candidates=pb.InlineCandidates(passages=passages), retriever=retriever
        )
        return self.retriever.Retrieve(request, metadata=metadata, timeout=GUARD_S)

    def ingest(self, metadata: tuple[tuple[str, str], ...]):  # type: ignore[no-untyped-def]
        return self.collections.Ingest(metadata=metadata, timeout=GUARD_S)

    def list(self, metadata: tuple[tuple[str, str], ...]):  # type: ignore[no-untyped-def]
        request = collections_pb.ListPassagesRequest(collection="c")
        return self.collections.ListPassages(request, metadata=metadata, timeout=GUARD_S)

    def get(self, metadata: tuple[tuple[str, str], ...]):  # type: ignore[no-untyped-def]
        request = collections_pb.GetPassagesRequest(collection="c", passage_ids=[passages(1, "kept")[0].id])
        return self.collections.GetPassages(request, metadata=metadata, timeout=GUARD_S)

    async def holds(self, size: int) -> None:
        """Wait until unfinished ingests hold as much."""
        await until(lambda: self.ingests.admission.in_flight >= size, GUARD_S)


@asynccontextmanager
async def serving(home: Path, **settings: float) -> AsyncIterator[Mesh]:
    configured = RetrieverSettings(encoder="held", host="127.0.0.1", port=0, **settings)  # type: ignore[arg-type]
    encoder = HeldEncoder()
    catalogue = RetrieverCatalogue(configured, cache(analyzer), encoder)
    store = SegmentStore(home / "collections", SegmentIndexing(cache(analyzer), encoder), catalogue.prepare)
    await store.start()
    pool = TenantPool(1, "retriever")
    admission = QueryAdmission(configured.max_work, queue_s=0, setting="EVENMESH_RETRIEVER_MAX_WORK")
    engine = RetrieverEngine(store, catalogue.retrievers, catalogue.default, pool, admission)
    retriever = RetrieverServicer(pool)
    retriever.open(engine, WebRetrieval({}, engine, admission), Embedder(encoder, pool, admission))
    ingests = IngestAdmission(configured)
    listings = TenantShares(configured.max_tenant_listings, "listings", "MAX_TENANT_LISTINGS")
    collections = CollectionServicer(pool, ingests, listings, idle_s=configured.ingest_idle_s)
    collections.open(store)
    registrations = [
        Registration(add_RetrieverServiceServicer_to_server, retriever, RETRIEVER_NAME),
        Registration(add_CollectionServiceServicer_to_server, collections, COLLECTION_NAME),
    ]
    server = MeshServer("retriever", configured, Idle(*registrations), telemetry=Telemetry.disabled())
    try:
        async with server, grpc.aio.insecure_channel(server.address) as channel:
            yield Mesh(server, channel, encoder, ingests, listings)
    finally:
        encoder.go.set()
        pool.close()
        await store.stop()


def passages(number: int, text: str) -> list[Passage]:
    return [Passage(id=f"p{one}", text=f"{text} {one}") for one in range(number)]


async def refused(call) -> MeshError:  # type: ignore[no-untyped-def]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return from_rpc_error(error.value)


async def test_a_dense_query_over_candidates_leaves_others_their_turn(tmp_path: Path) -> None:
    async with serving(tmp_path) as mesh:
        attacks = [mesh.ask(LOUD, passages(400, "slow"), "dense") for _ in range(4)]
        assert await asyncio.to_thread(mesh.encoder.began.wait, GUARD_S)
        answer = await mesh.ask(QUIET, passages(3, "fox"), "bm25-lucene")
        assert len(answer.passages) == 3
        assert not any(attack.done() for attack in attacks)
        # Who goes away leaves nothing behind: the batch at work is the last.
        for attack in attacks:
            attack.cancel()
        await until(lambda: not mesh.server.in_flight, GUARD_S)
        mesh.encoder.go.set()
        answer = await mesh.ask(LOUD, passages(3, "fox"), "bm25-lucene")
        assert len(answer.passages) == 3
        assert mesh.encoder.batches <= 4  # of a hundred


async def test_too_much_to_encode_is_refused_with_what_fits(tmp_path: Path) -> None:
    async with serving(tmp_path) as mesh:
        error = await refused(mesh.ask(LOUD, passages(1000, "slow " * 200), "dense"))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
        fitting = re.search(r"about (\d+) of these 1000 passages fit 'dense'", error.message)
        assert fitting is not None
        assert 40 < int(fitting[1]) < 52  # of 256 tokens each
        assert "EVENMESH_RETRIEVER_MAX_WORK" in error.message
        assert mesh.encoder.batches == 0


async def test_tokens_are_counted_before_they_are_encoded(tmp_path: Path) -> None:
    # 2 bytes for each token are estimated, and these have one for each: 200 of 128 where 64 were estimated.
    dense = passages(200, "x" * 123)
    async with serving(tmp_path) as mesh:
        error = await refused(mesh.ask(LOUD, dense, "dense"))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
        assert "tokens to encode" in error.message
        assert mesh.encoder.batches * 16 * 128 <= 2**18 // 18  # the last step was refused before it was taken


async def test_a_tenant_lists_as_many_collections_at_a_time_as_it_may(tmp_path: Path) -> None:
    part = collections_pb.IngestRequest(
        collection="c", passages=passages(3, "kept"), create_if_missing=True, last=True
    )
    async with serving(tmp_path, max_tenant_listings=2) as mesh:
        for metadata in (LOUD, QUIET):
            ingest = mesh.ingest(metadata)
            await ingest.write(part)
            await ingest.done_writing()
            await ingest
        callers.enter(Caller("loud", "loud", frozenset()))
        with mesh.listings.hold(2):  # as two streams that are not read
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await _listed(mesh.list(LOUD))
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "MAX_TENANT_LISTINGS" in str(raised.value.details())
            with pytest.raises(grpc.aio.AioRpcError, match="MAX_TENANT_LISTINGS"):
                await _listed(mesh.get(LOUD))
            assert await _listed(mesh.get(QUIET)) == 1
            assert await _listed(mesh.list(QUIET)) == 3
        assert await _listed(mesh.list(LOUD)) == 3
        assert mesh.listings.held("loud") == mesh.listings.held("quiet") == 0


async def _listed(call) -> int:  # type: ignore[no-untyped-def]
    return sum([len(page.passages) async for page in call])


async def test_no_tenant_finds_what_another_one_had_encoded(tmp_path: Path) -> None:
    async with serving(tmp_path) as mesh:
        for metadata in (LOUD, LOUD, QUIET, QUIET):
            await mesh.ask(metadata, passages(3, "fox"), "dense")
        assert mesh.encoder.queries == ["fox", "fox"]  # once for each tenant


async def test_ingests_count_what_they_take_decoded(tmp_path: Path) -> None:
    async with serving(tmp_path, max_tenant_ingest_bytes=2**20, max_ingest_bytes=2**21) as mesh:
        attributes = {f"{key}": "" for key in range(64)}
        many = [Passage(id=f"p{one}", text="x", attributes=attributes) for one in range(100)]
        request = collections_pb.IngestRequest(
            collection="c", passages=many, create_if_missing=True, last=True
        )
        assert request.ByteSize() < 2**16 < 2**20
        call = mesh.ingest(LOUD)
        await call.write(request)
        error = await refused(call)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
        assert "EVENMESH_RETRIEVER_MAX_TENANT_INGEST_BYTES" in error.message


async def test_a_tenant_that_fills_its_share_of_ingests_leaves_others_theirs(tmp_path: Path) -> None:
    bounds = {"max_tenant_ingest_bytes": 2**20, "max_ingest_bytes": 2**21, "max_tenant_ingests": 2}
    part = collections_pb.IngestRequest(
        collection="c", passages=passages(8, "x" * 60_000), create_if_missing=True
    )
    async with serving(tmp_path, **bounds) as mesh:
        first, second = mesh.ingest(LOUD), mesh.ingest(LOUD)
        await first.write(part)
        await mesh.holds(480_000)
        await second.write(part)
        await mesh.holds(960_000)
        error = await refused(mesh.ingest(LOUD))
        assert "EVENMESH_RETRIEVER_MAX_TENANT_INGESTS" in error.message
        await second.write(part)
        error = await refused(second)
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "EVENMESH_RETRIEVER_MAX_TENANT_INGEST_BYTES" in error.message

        quiet = mesh.ingest(QUIET)
        part.last = True
        await quiet.write(part)
        await quiet.done_writing()
        assert (await quiet).added == 8
        first.cancel()


async def test_a_silent_ingest_ends_and_frees_its_share(tmp_path: Path) -> None:
    async with serving(tmp_path, ingest_idle_s=2, max_tenant_ingests=1) as mesh:
        whole = collections_pb.IngestRequest(
            collection="c", passages=passages(3, "kept"), create_if_missing=True, last=True
        )
        call = mesh.ingest(LOUD)
        await call.write(whole)
        await call.done_writing()
        await call

        silent = mesh.ingest(LOUD)
        await silent.write(collections_pb.IngestRequest(collection="c", passages=passages(5, "lost")))
        error = await refused(silent)
        assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE")
        assert "send it again" in error.message

        again = mesh.ingest(LOUD)
        await again.write(whole)
        await again.done_writing()
        report = await again
        assert (report.unchanged, report.collection.num_passages) == (3, 3)
