"""Serve the retriever's RPCs: thin methods over the engine and the store."""
# ruff: noqa: N802 - the names are the contract's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import grpc

from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collections_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh.wire import checks
from evenmesh.wire.errors import MeshError
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.security import caller as callers
from evenmesh_retriever.codec import collections, embeddings, queries
from evenmesh_retriever.codec.passages import decoded_bytes
from evenmesh_retriever.domain import Retrieval
from evenmesh_retriever.embedding import Embedder
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.ingest_admission import IngestAdmission
from evenmesh_retriever.ports import CollectionStore, TenantCollections
from evenmesh_retriever.web import WebRetrieval

Context = grpc.aio.ServicerContext[Any, Any]

# What is read or written on the event loop; more goes to a thread. Each takes about a millisecond.
_BYTES_ON_LOOP: Final = 2**16
_PASSAGES_ON_LOOP: Final = 100
_INDICES_ON_LOOP: Final = 20_000


class RetrieverServicer(retriever_grpc.RetrieverServiceServicer):
    """``evenmesh.retriever.v1.RetrieverService``; takes calls once it is open.

    Args:
        pool: threads for reading and writing large messages.
    """

    def __init__(self, pool: ComputePool) -> None:
        self._pool = pool
        self._engine: RetrieverEngine
        self._web: WebRetrieval
        self._embedder: Embedder

    def open(self, engine: RetrieverEngine, web: WebRetrieval, embedder: Embedder) -> None:
        """Serve queries with an engine, those to the web with another, and vectors with an embedder."""
        self._engine = engine
        self._web = web
        self._embedder = embedder

    async def Retrieve(
        self, request: retriever_pb.RetrieveRequest, context: Context
    ) -> retriever_pb.RetrieveResponse:
        """Return scores passages for a query and ranks them."""
        if request.ByteSize() > _BYTES_ON_LOOP:
            query = await self._pool.run(queries.query_of, request)
        else:
            query = queries.query_of(request)
        query = replace(query, tenant=callers.current().tenant)
        if request.HasField("web"):
            retrieval = await self._web.retrieve(request.web, query)
        else:
            retrieval = await self._engine.retrieve(query)
        if _is_large(retrieval):
            return await self._pool.run(queries.response_of, retrieval, query.draw)
        return queries.response_of(retrieval, query.draw)

    async def Embed(self, request: retriever_pb.EmbedRequest, context: Context) -> retriever_pb.EmbedResponse:
        """Return the vectors of texts."""
        if request.ByteSize() > _BYTES_ON_LOOP:
            texts = await self._pool.run(embeddings.texts_of, request)
        else:
            texts = embeddings.texts_of(request)
        embedded = await self._embedder.embed(texts)
        if embedded.vectors.size > _INDICES_ON_LOOP:
            return await self._pool.run(embeddings.response_of, embedded)
        return embeddings.response_of(embedded)

    async def ListRetrievers(
        self, request: retriever_pb.ListRetrieversRequest, context: Context
    ) -> retriever_pb.ListRetrieversResponse:
        """List the retrievers, the default first."""
        return retriever_pb.ListRetrieversResponse(
            retrievers=[
                queries.retriever_of(info, is_default=is_default) for info, is_default in self._engine.list()
            ]
        )

    async def ListSources(
        self, request: retriever_pb.ListSourcesRequest, context: Context
    ) -> retriever_pb.ListSourcesResponse:
        """List the web-search sources by name."""
        return retriever_pb.ListSourcesResponse(
            sources=[queries.source_of(info) for info in self._web.list()]
        )


class CollectionServicer(collections_grpc.CollectionServiceServicer):
    """``evenmesh.retriever.v1.CollectionService``; takes calls once it is open.

    Args:
        pool: threads for reading large messages.
        admission: bounds unfinished ingests.
        listings: bounds the streams of ``ListPassages``.
        idle_s: longest wait for passages of an ingest stream. Seconds, (0, inf).
    """

    def __init__(
        self,
        pool: ComputePool,
        admission: IngestAdmission,
        listings: TenantShares,
        *,
        idle_s: float,
    ) -> None:
        self._pool = pool
        self._listings = listings
        self._admission = admission
        self._idle_s = idle_s
        self._store: CollectionStore

    def open(self, store: CollectionStore) -> None:
        """Serve these collections."""
        self._store = store

    def _mine(self) -> TenantCollections:
        """Return those of the tenant that calls: the credential's."""
        return self._store.of(callers.current().tenant)

    def _written(self) -> TenantCollections:
        """Return them to be changed; refuse before anything is read where they cannot be."""
        self._store.check_writable()
        return self._mine()

    async def _refreshed(self) -> TenantCollections:
        await self._store.refresh()
        return self._mine()

    async def CreateCollection(
        self, request: collections_pb.CreateCollectionRequest, context: Context
    ) -> collections_pb.CreateCollectionResponse:
        """Create an empty collection."""
        name = checks.name("name", request.name)
        info = await self._written().create(
            name, collections.description_of(request.description), collections.lexical_of(request.lexical)
        )
        return collections_pb.CreateCollectionResponse(collection=collections.collection_of(info))

    async def Ingest(
        self, request_iterator: AsyncIterator[collections_pb.IngestRequest], context: Context
    ) -> collections_pb.IngestResponse:
        """Add or replaces the passages of a stream, all or none."""
        store = self._written()
        reader = collections.IngestReader()
        with self._admission.stream() as held:
            async for request in self._in_time(request_iterator):
                is_first = not reader.collection
                reader.head(request)
                if is_first and not reader.create:
                    with store.lease(reader.collection):
                        pass  # there is one: known before the rest of the stream is sent
                held.add(decoded_bytes(request, request.passages))
                await self._pool.run(reader.body, request)
            reader.end()
            report = await store.ingest(reader.collection, reader.passages, create=reader.create)
        return collections_pb.IngestResponse(
            collection=collections.collection_of(report.collection),
            added=report.added,
            replaced=report.replaced,
            unchanged=report.unchanged,
        )

    async def _in_time(
        self, requests: AsyncIterator[collections_pb.IngestRequest]
    ) -> AsyncIterator[collections_pb.IngestRequest]:
        """Yield the messages of a stream; end it when no passages come for too long."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._idle_s
        while True:
            try:
                async with asyncio.timeout_at(ends) as wait:
                    request = await anext(requests, None)
            except TimeoutError:
                if not wait.expired():
                    raise
                raise MeshError(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    "STREAM_IDLE",
                    f"no passages came for {self._idle_s:g} s, and nothing of this stream was kept: send it "
                    "again",
                ) from None
            if request is None:
                return
            yield request
            if request.passages or request.last:
                ends = loop.time() + self._idle_s

    async def DeletePassages(
        self, request: collections_pb.DeletePassagesRequest, context: Context
    ) -> collections_pb.DeletePassagesResponse:
        """Remove passages by id."""
        name = checks.name("collection", request.collection)
        self._written()
        with self._admission.request() as held:
            held.add(request.ByteSize())
            ids = await self._pool.run(collections.ids_of, request.passage_ids)
            report = await self._written().delete_passages(name, ids)
        return collections_pb.DeletePassagesResponse(
            collection=collections.collection_of(report.collection),
            deleted=report.deleted,
            missing=report.missing,
        )

    async def GetCollection(
        self, request: collections_pb.GetCollectionRequest, context: Context
    ) -> collections_pb.GetCollectionResponse:
        """Describe one collection."""
        name = checks.name("name", request.name)
        info = (await self._refreshed()).describe(name)
        return collections_pb.GetCollectionResponse(collection=collections.collection_of(info))

    async def ListCollections(
        self, request: collections_pb.ListCollectionsRequest, context: Context
    ) -> collections_pb.ListCollectionsResponse:
        """Describe all collections, by name."""
        return collections_pb.ListCollectionsResponse(
            collections=[collections.collection_of(info) for info in (await self._refreshed()).list()]
        )

    async def DeleteCollection(
        self, request: collections_pb.DeleteCollectionRequest, context: Context
    ) -> collections_pb.DeleteCollectionResponse:
        """Remove a collection and its versions."""
        await self._written().drop(checks.name("name", request.name))
        return collections_pb.DeleteCollectionResponse()

    async def ListPassages(
        self, request: collections_pb.ListPassagesRequest, context: Context
    ) -> AsyncIterator[collections_pb.ListPassagesResponse]:
        """Return passages of the version that is served now, by ascending id."""
        name = checks.name("collection", request.collection)
        prefix = checks.at_most("id_prefix", request.id_prefix, checks.MAX_ID_BYTES)
        with self._listings.hold(1), self._mine().lease(name) as snapshot:
            pages = collections.pages_of(snapshot, prefix)
            while (page := await self._pool.run(next, pages, None)) is not None:
                yield page

    async def GetPassages(
        self, request: collections_pb.GetPassagesRequest, context: Context
    ) -> AsyncIterator[collections_pb.GetPassagesResponse]:
        """Return passages of the version that is served now by id."""
        name = checks.name("collection", request.collection)
        ids = await self._pool.run(collections.ids_of, request.passage_ids)
        with self._listings.hold(1), self._mine().lease(name) as snapshot:
            pages = collections.named_of(snapshot, ids)
            while (page := await self._pool.run(next, pages, None)) is not None:
                yield page


def _is_large(retrieval: Retrieval) -> bool:
    """Return whether writing an answer takes longer than the event loop may be held."""
    return (
        len(retrieval.passages) > _PASSAGES_ON_LOOP
        or retrieval.rankings.size > _INDICES_ON_LOOP
        or sum(len(passage.text) for passage in retrieval.passages) > _BYTES_ON_LOOP
    )
