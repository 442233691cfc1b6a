"""The retriever on the wire: thin RPCs over the engine and the store."""
# ruff: noqa: N802 - the names are the contract's

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import grpc

from meshkit import checks
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from meshkit.security import caller as callers
from ragmesh.retriever.v1 import collection_service_pb2 as collections_pb
from ragmesh.retriever.v1 import collection_service_pb2_grpc as collections_grpc
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from ragmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from services.retriever.codec import collections, queries
from services.retriever.engine import RetrieverEngine
from services.retriever.ports import CollectionStore, Shared, Tenants
from services.retriever.web import WebRetrieval

Context = grpc.aio.ServicerContext[Any, Any]

# What is read or written on the event loop; more goes to a thread. Each takes about a millisecond.
_PASSAGES_ON_LOOP: Final = 100
_INDICES_ON_LOOP: Final = 20_000


class RetrieverServicer(retriever_grpc.RetrieverServiceServicer):
    """``ragmesh.retriever.v1.RetrieverService``; takes calls once it is open.

    Args:
        pool: threads for reading and writing large messages.
    """

    def __init__(self, pool: ComputePool) -> None:
        self._pool = pool
        self._engine: RetrieverEngine
        self._web: WebRetrieval

    def open(self, engine: RetrieverEngine, web: WebRetrieval) -> None:
        """Gives it what answers queries, and what answers those to the web."""
        self._engine = engine
        self._web = web

    async def Retrieve(
        self, request: retriever_pb.RetrieveRequest, context: Context
    ) -> retriever_pb.RetrieveResponse:
        """Scores passages for a query and ranks them."""
        if len(request.candidates.passages) > _PASSAGES_ON_LOOP:
            query = await self._pool.run(queries.query_of, request)
        else:
            query = queries.query_of(request)
        query = replace(query, tenant=callers.current().tenant)
        if request.HasField("web"):
            retrieval = await self._web.retrieve(request.web, query)
        else:
            retrieval = await self._engine.retrieve(query)
        if len(retrieval.passages) > _PASSAGES_ON_LOOP or retrieval.rankings.size > _INDICES_ON_LOOP:
            return await self._pool.run(queries.response_of, retrieval)
        return queries.response_of(retrieval)

    async def ListRetrievers(
        self, request: retriever_pb.ListRetrieversRequest, context: Context
    ) -> retriever_pb.ListRetrieversResponse:
        """Lists the retrievers, the default first."""
        return retriever_pb.ListRetrieversResponse(
            retrievers=[
                queries.retriever_of(info, is_default=is_default) for info, is_default in self._engine.list()
            ]
        )

    async def ListSources(
        self, request: retriever_pb.ListSourcesRequest, context: Context
    ) -> retriever_pb.ListSourcesResponse:
        """Lists the web-search sources by name."""
        return retriever_pb.ListSourcesResponse(
            sources=[queries.source_of(info) for info in self._web.list()]
        )


class CollectionServicer(collections_grpc.CollectionServiceServicer):
    """``ragmesh.retriever.v1.CollectionService``; takes calls once it is open.

    Args:
        pool: threads for reading large messages.
        admission: counts bytes of unfinished ingest streams.
        limit_setting: name of the setting of its capacity, for errors.
    """

    def __init__(self, pool: ComputePool, admission: Admission, *, limit_setting: str) -> None:
        self._pool = pool
        self._admission = admission
        self._limit_setting = limit_setting
        self._store: Tenants

    def open(self, store: Tenants) -> None:
        """Gives it the collections."""
        self._store = store

    def _mine(self) -> CollectionStore:
        """Those of the tenant that calls: the credential's."""
        return self._store.of(callers.current().tenant)

    async def _refreshed(self) -> CollectionStore:
        store = self._mine()
        if isinstance(store, Shared):
            await store.refresh()
        return store

    async def CreateCollection(
        self, request: collections_pb.CreateCollectionRequest, context: Context
    ) -> collections_pb.CreateCollectionResponse:
        """Creates an empty collection."""
        name = checks.name("name", request.name)
        info = await self._mine().create(
            name, collections.description_of(request.description), collections.lexical_of(request.lexical)
        )
        return collections_pb.CreateCollectionResponse(collection=collections.collection_of(info))

    async def Ingest(
        self, request_iterator: AsyncIterator[collections_pb.IngestRequest], context: Context
    ) -> collections_pb.IngestResponse:
        """Adds or replaces the passages of a stream, all or none."""
        store = self._mine()
        reader = collections.IngestReader()
        held = 0
        with ExitStack() as admitted:
            async for request in request_iterator:
                is_first = not reader.collection
                reader.head(request)
                if is_first and not reader.create:
                    with store.lease(reader.collection):
                        pass  # there is one: known before the rest of the stream is sent
                size = request.ByteSize()
                held += size
                if held > self._admission.capacity:
                    raise MeshError(
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                        "REQUEST_TOO_LARGE",
                        f"the stream holds more than {self._admission.capacity} bytes: send it as several "
                        f"streams, or raise {self._limit_setting}",
                        field="passages",
                    )
                admitted.enter_context(self._admission.admit(size))
                await self._pool.run(reader.body, request)
            reader.end()
            report = await store.ingest(reader.collection, reader.passages, create=reader.create)
        return collections_pb.IngestResponse(
            collection=collections.collection_of(report.collection),
            added=report.added,
            replaced=report.replaced,
            unchanged=report.unchanged,
        )

    async def DeletePassages(
        self, request: collections_pb.DeletePassagesRequest, context: Context
    ) -> collections_pb.DeletePassagesResponse:
        """Removes passages by id."""
        name = checks.name("collection", request.collection)
        ids = await self._pool.run(collections.ids_of, request.passage_ids)
        report = await self._mine().delete_passages(name, ids)
        return collections_pb.DeletePassagesResponse(
            collection=collections.collection_of(report.collection),
            deleted=report.deleted,
            missing=report.missing,
        )

    async def GetCollection(
        self, request: collections_pb.GetCollectionRequest, context: Context
    ) -> collections_pb.GetCollectionResponse:
        """Describes one collection."""
        name = checks.name("name", request.name)
        info = (await self._refreshed()).describe(name)
        return collections_pb.GetCollectionResponse(collection=collections.collection_of(info))

    async def ListCollections(
        self, request: collections_pb.ListCollectionsRequest, context: Context
    ) -> collections_pb.ListCollectionsResponse:
        """Describes all collections, by name."""
        return collections_pb.ListCollectionsResponse(
            collections=[collections.collection_of(info) for info in (await self._refreshed()).list()]
        )

    async def DeleteCollection(
        self, request: collections_pb.DeleteCollectionRequest, context: Context
    ) -> collections_pb.DeleteCollectionResponse:
        """Removes a collection and its versions."""
        await self._mine().drop(checks.name("name", request.name))
        return collections_pb.DeleteCollectionResponse()

    async def ListPassages(
        self, request: collections_pb.ListPassagesRequest, context: Context
    ) -> AsyncIterator[collections_pb.ListPassagesResponse]:
        """Gives all passages of the version that is served now, by ascending id."""
        with self._mine().lease(checks.name("collection", request.collection)) as snapshot:
            pages = collections.pages_of(snapshot)
            while (page := await self._pool.run(next, pages, None)) is not None:
                yield page

    async def GetPassages(
        self, request: collections_pb.GetPassagesRequest, context: Context
    ) -> AsyncIterator[collections_pb.GetPassagesResponse]:
        """Gives passages of the version that is served now by id."""
        name = checks.name("collection", request.collection)
        ids = await self._pool.run(collections.ids_of, request.passage_ids)
        with self._mine().lease(name) as snapshot:
            pages = collections.named_of(snapshot, ids)
            while (page := await self._pool.run(next, pages, None)) is not None:
                yield page
