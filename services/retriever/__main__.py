"""Runs the retriever: ``python -m services.retriever``; settings from ``RAGMESH_RETRIEVER_…``."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from meshkit import logs
from meshkit.admission import Admission
from meshkit.admission_metrics import AdmissionMetrics
from meshkit.compute import ComputePool
from meshkit.server import Registration, ServerStartError, run, serve
from meshkit.settings import load, variable
from meshkit.telemetry import Telemetry
from ragmesh.retriever.v1 import collection_service_pb2, retriever_service_pb2
from ragmesh.retriever.v1.collection_service_pb2_grpc import add_CollectionServiceServicer_to_server
from ragmesh.retriever.v1.retriever_service_pb2_grpc import add_RetrieverServiceServicer_to_server
from services.retriever import ranking
from services.retriever.analyzer import analyzer
from services.retriever.backends.catalogue import Catalogue
from services.retriever.backends.segments.quotas import Limit, Quotas
from services.retriever.backends.segments.store import Options, SegmentStore
from services.retriever.backends.segments.writer import Recipe
from services.retriever.engine import RetrieverEngine
from services.retriever.metrics import RetrieverMetrics
from services.retriever.ports import CannotStart, Encoder
from services.retriever.servicer import CollectionServicer, RetrieverServicer
from services.retriever.settings import RetrieverSettings
from services.retriever.web import WebRetrieval

if TYPE_CHECKING:
    from services.retriever.backends.milvus.opening import MilvusOpening
    from services.retriever.backends.milvus.store import MilvusStore
    from services.retriever.backends.splade.sparse_encoder import SparseTextEncoder
    from services.retriever.backends.web.source import SearxSources

RETRIEVER_NAME = retriever_service_pb2.DESCRIPTOR.services_by_name["RetrieverService"].full_name
"""Full name of the service that ranks."""
COLLECTION_NAME = collection_service_pb2.DESCRIPTOR.services_by_name["CollectionService"].full_name
"""Full name of the service that keeps collections."""


_TAKE_OVER_S = 120.0


class RetrieverService:
    """Everything of one retriever process, put together; also its lifecycle.

    Args:
        settings: the settings.
        telemetry: what is recorded of searches and collections.
    """

    def __init__(self, settings: RetrieverSettings, telemetry: Telemetry | None = None) -> None:
        self._settings = settings
        telemetry = telemetry or Telemetry.disabled()
        self._metrics = RetrieverMetrics(telemetry, series=settings.metrics_series)
        ingesting = Admission(settings.max_ingest_bytes, "bytes")
        self._admissions = AdmissionMetrics(telemetry, ingesting)
        self._pool = ComputePool(settings.threads, "retriever")
        self._store: SegmentStore | MilvusStore | None = None
        self._web: SearxSources | None = None
        self._retriever = RetrieverServicer(self._pool)
        self._collections = CollectionServicer(
            self._pool,
            ingesting,
            limit_setting=variable(settings, "max_ingest_bytes"),
        )
        self.registrations = [
            Registration(add_RetrieverServiceServicer_to_server, self._retriever, RETRIEVER_NAME),
            Registration(add_CollectionServiceServicer_to_server, self._collections, COLLECTION_NAME),
        ]

    async def start(self) -> None:
        """Loads the encoder and opens the collections.

        Raises:
            ServerStartError: either cannot be had; one line that says what to do.
        """
        settings = self._settings
        # Before the folder of collections is waited for: what comes after is a gap where one takes over.
        await self._pool.run(ranking.warm)
        try:
            encoder = None
            if settings.encoder:
                encoder = self._metrics.encoder(await self._pool.run(_load_encoder, settings))
            analyzers = cache(analyzer)
            sparse = await self._pool.run(_load_splade, settings) if settings.splade_model else None
            store: SegmentStore | MilvusStore
            if settings.store == "milvus":
                opened = await self._pool.run(_load_milvus, settings, encoder, sparse)
                self._store = store = opened.store
                await store.start()
                catalogue = await self._pool.run(
                    Catalogue, settings, analyzers, encoder, sparse, opened.retrievers
                )
            else:
                catalogue = await self._pool.run(Catalogue, settings, analyzers, encoder, sparse)
                self._store = store = SegmentStore(
                    settings.home / "collections",
                    Recipe(analyzers, encoder, settings.embed_at_once, catalogue.carry, catalogue.ahead),
                    catalogue.prepare,
                    Options(
                        quotas=_quotas(settings),
                        verify_bytes=settings.verify_bytes,
                        lock_wait_s=_TAKE_OVER_S if settings.share_port else 0.0,
                    ),
                )
                await store.start()
            if settings.web_sources:
                self._web = (await self._pool.run(_web_class))(settings.web_sources, settings.web_readers)
                await self._web.start()
        except CannotStart as error:
            raise ServerStartError(str(error)) from None
        admission = Admission(settings.max_work, "texts", queue_s=settings.queue_s)
        self._admissions.watch(admission)
        self._metrics.watch(store.everyones)
        engine = RetrieverEngine(
            store, catalogue.retrievers, catalogue.default, self._pool, admission, self._metrics
        )
        self._retriever.open(
            engine, WebRetrieval(self._web.sources if self._web is not None else {}, engine, admission)
        )
        self._collections.open(store)

    async def stop(self) -> None:
        """Closes the collections."""
        if self._store is not None:
            await self._store.stop()
        if self._web is not None:
            await self._web.close()
        self._pool.close()


def _quotas(settings: RetrieverSettings) -> Quotas:
    def limit(name: str) -> Limit:
        return Limit(getattr(settings, name), variable(settings, name))

    return Quotas(
        limit("max_collection_passages"),
        limit("max_collection_bytes"),
        limit("max_tenant_passages"),
        limit("max_tenant_bytes"),
    )


def _load_encoder(settings: RetrieverSettings) -> Encoder:
    # In a thread of its own: importing PyTorch takes seconds, in which health must answer.
    if settings.encoder.startswith("triton://"):
        return _triton_encoder(settings)
    from services.retriever.backends.dense.sentence_encoder import SentenceEncoder

    return SentenceEncoder(
        settings.encoder,
        device=settings.encoder_device,
        precision=settings.encoder_precision,
        threads=settings.encoder_threads,
        pooling=settings.encoder_pooling,
        query_prefix=settings.encoder_query_prefix,
        passage_prefix=settings.encoder_passage_prefix,
        setting=variable(settings, "encoder"),
    )


def _triton_encoder(settings: RetrieverSettings) -> Encoder:
    name = variable(settings, "encoder")
    try:
        from services.retriever.backends.dense.triton_encoder import TritonEncoder
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"{name}={settings.encoder!r} needs {error.name}, which is not installed: "
            "pip install 'tritonclient[grpc]'"
        ) from None
    if settings.encoder_pooling:
        raise CannotStart(
            f"{variable(settings, 'encoder_pooling')} must be empty where {name} is a Triton server's: there "
            "the model's parameter `pooling` says it"
        )
    return TritonEncoder(
        settings.encoder,
        query_prefix=settings.encoder_query_prefix or "",
        passage_prefix=settings.encoder_passage_prefix or "",
        setting=name,
        credentials=settings.triton_credentials(),
    )


def _load_splade(settings: RetrieverSettings) -> SparseTextEncoder:
    from services.retriever.backends.splade.sparse_encoder import SpladeEncoder

    return SpladeEncoder(
        settings.splade_model, device=settings.encoder_device, setting=variable(settings, "splade_model")
    )


def _load_milvus(
    settings: RetrieverSettings, encoder: Encoder | None, sparse: SparseTextEncoder | None
) -> MilvusOpening:
    # In a thread, and only where it is used: importing its client takes a second.
    try:
        from services.retriever.backends.milvus.opening import MilvusOpening
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"{variable(settings, 'store')}='milvus' needs {error.name}, which is not installed: "
            "pip install 'ragmesh[milvus]'"
        ) from None
    return MilvusOpening(settings, encoder, sparse, _quotas(settings))


def _web_class() -> type[SearxSources]:
    # In a thread, and only where it is used: it brings a client of the web.
    try:
        from services.retriever.backends.web.source import SearxSources
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"web sources need {error.name}, which is not installed: pip install 'ragmesh[web]'"
        ) from None
    return SearxSources


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RetrieverSettings)
    logs.configure("retriever", settings)
    telemetry = Telemetry.from_settings("retriever", settings)
    service = RetrieverService(settings, telemetry)
    await serve("retriever", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
