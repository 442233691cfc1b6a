"""Run the retriever: ``python -m evenmesh_retriever``; settings come from ``EVENMESH_RETRIEVER_…``."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from evenmesh.retriever.v1 import collection_service_pb2, retriever_service_pb2
from evenmesh.retriever.v1.collection_service_pb2_grpc import add_CollectionServiceServicer_to_server
from evenmesh.retriever.v1.retriever_service_pb2_grpc import add_RetrieverServiceServicer_to_server
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run_service
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import Registration, Service
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Spans
from evenmesh_retriever import ranking
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.follower import Following, FollowingStore
from evenmesh_retriever.backends.segments.quotas import Limit, Quotas
from evenmesh_retriever.backends.segments.store import Options, SegmentStore
from evenmesh_retriever.backends.splade.postings import SparseTextEncoder
from evenmesh_retriever.embedding import Embedder
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.ingest_admission import IngestAdmission
from evenmesh_retriever.metrics import RetrieverMetrics
from evenmesh_retriever.ports import Analyzer, CannotStart, Encoder, Retriever
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.servicer import CollectionServicer, RetrieverServicer
from evenmesh_retriever.settings import REMOTE, RetrieverSettings
from evenmesh_retriever.web import WebRetrieval

if TYPE_CHECKING:
    from evenmesh_retriever.backends.milvus.store import MilvusStore
    from evenmesh_retriever.backends.web.source import SearxSources

RETRIEVER_NAME = retriever_service_pb2.DESCRIPTOR.services_by_name["RetrieverService"].full_name
"""Full name of the service that ranks."""
COLLECTION_NAME = collection_service_pb2.DESCRIPTOR.services_by_name["CollectionService"].full_name
"""Full name of the service that keeps collections."""


_TAKE_OVER_S = 120.0
_TENANT_OF_DISK = 16


class RetrieverService(Service):
    """Everything of one retriever process, put together; also its lifecycle.

    Args:
        settings: the settings.
        telemetry: what is recorded of searches and collections.

    Attributes:
        readiness: whether the model servers answer, if the default retriever needs their encoder.
    """

    def __init__(self, settings: RetrieverSettings, telemetry: Telemetry | None = None) -> None:
        self._settings = settings
        self._telemetry = telemetry = telemetry or Telemetry.disabled()
        self.readiness = self._readiness = Readiness()
        self._missing: set[str] = set()
        self._close_encoder: Callable[[], None] = lambda: None
        self._metrics = RetrieverMetrics(telemetry, series=settings.metrics_series)
        ingesting = IngestAdmission(settings)
        self._admissions = AdmissionMetrics(telemetry, ingesting.admission)
        self._pool = TenantPool(settings.threads, "retriever")
        self._store: SegmentStore | FollowingStore | MilvusStore | None = None
        self._web: SearxSources | None = None
        self._retriever = RetrieverServicer(self._pool)
        self._collections = CollectionServicer(
            self._pool,
            ingesting,
            TenantShares(
                settings.max_tenant_listings,
                "listings of passages",
                variable(settings, "max_tenant_listings"),
            ),
            idle_s=settings.ingest_idle_s,
        )
        self.registrations = [
            Registration(add_RetrieverServiceServicer_to_server, self._retriever, RETRIEVER_NAME),
            Registration(add_CollectionServiceServicer_to_server, self._collections, COLLECTION_NAME),
        ]

    async def start(self) -> None:
        """Load the encoder and open the collections.

        Raises:
            ServerStartError: either cannot be had; one line that says what to do.
        """
        settings = self._settings
        # Before the folder of collections is waited for: what comes after is a gap where one takes over.
        await self._pool.run(ranking.warm)
        try:
            encoder = None
            if settings.encoder:
                encoder = self._metrics.encoder(
                    await self._pool.run(self._load_encoder, self._encoder_state())
                )
            analyzers = cache(analyzer)
            sparse = await self._pool.run(_load_splade, settings) if settings.splade_model else None
            store: SegmentStore | FollowingStore | MilvusStore
            if settings.store == "milvus":
                there, retrievers = await self._pool.run(_load_milvus, settings, encoder, sparse)
                self._store = store = there
                await store.start()
                catalogue = await self._pool.run(
                    RetrieverCatalogue, settings, analyzers, encoder, sparse, retrievers
                )
            else:
                catalogue = await self._pool.run(RetrieverCatalogue, settings, analyzers, encoder, sparse)
                self._store = store = self._over_segments(analyzers, encoder, catalogue)
                await store.start()
            if settings.web_sources:
                self._web = (await self._pool.run(_web_class))(settings.web_sources, settings.web_readers)
                await self._web.start()
        except CannotStart as error:
            raise ServerStartError(str(error)) from None
        admission = QueryAdmission(
            settings.max_work, queue_s=settings.queue_s, setting=variable(settings, "max_work")
        )
        self._admissions.watch(admission.admission)
        self._metrics.watch(store.everyones)
        if isinstance(store, FollowingStore):
            self._metrics.follow(store)
        engine = RetrieverEngine(
            store, catalogue.retrievers, catalogue.default, self._pool, admission, self._metrics
        )
        self._retriever.open(
            engine,
            WebRetrieval(self._web.sources if self._web is not None else {}, engine, admission),
            Embedder(encoder, self._pool, admission),
        )
        self._collections.open(store)

    async def stop(self) -> None:
        """Close the collections."""
        # First: what waits for vectors ends with it.
        await asyncio.to_thread(self._close_encoder)
        if self._store is not None:
            await self._store.stop()
        if self._web is not None:
            await self._web.close()
        self._pool.close()

    def _over_segments(
        self,
        analyzers: Callable[[str], Analyzer],
        encoder: Encoder | None,
        catalogue: RetrieverCatalogue,
    ) -> SegmentStore | FollowingStore:
        settings = self._settings
        root = settings.kept_in / "collections"
        if settings.follow is not None:
            return FollowingStore(
                root,
                SegmentIndexing(analyzers, encoder, settings.embed_at_once),
                catalogue.prepare,
                Following(
                    settings.follow_look_s,
                    settings.follow_stale_s,
                    settings.keep_s,
                    settings.verify_bytes,
                ),
                partial(self._set_ready, "the collections that are followed"),
            )
        wait_s = settings.lease_wait_s
        if wait_s is None:
            wait_s = _TAKE_OVER_S if settings.share_port else 0.0
        return SegmentStore(
            root,
            SegmentIndexing(analyzers, encoder, settings.embed_at_once, catalogue.carry, catalogue.ahead),
            catalogue.prepare,
            Options(
                quotas=_quotas(settings),
                verify_bytes=settings.verify_bytes,
                lock_wait_s=wait_s,
                lease_s=settings.lease_s,
                keep_s=settings.keep_s,
            ),
            _end,
        )

    def _set_ready(self, what: str, there: bool) -> None:
        """Have health say whether all that is needed is there."""
        (self._missing.discard if there else self._missing.add)(what)
        self._readiness.ready = not self._missing

    def _load_encoder(self, ready: Callable[[bool], None]) -> Encoder:
        if self._settings.encoder != REMOTE:
            return _load_encoder(self._settings)
        from evenmesh_retriever.backends.dense.remote_encoder import RemoteEncoder

        settings = self._settings
        if settings.encoder_pooling:
            raise CannotStart(
                f"{variable(settings, 'encoder_pooling')} must be empty where "
                f"{variable(settings, 'encoder')} is {REMOTE!r}: the model server pools"
            )
        try:
            client = settings.remote_client(spans=Spans(self._telemetry), tei=settings.remote_server == "tei")
        except SettingsError as error:
            raise CannotStart(str(error)) from None
        encoder = RemoteEncoder(
            client,
            server=settings.remote_server,
            model=settings.remote_model,
            query_prefix=settings.encoder_query_prefix,
            passage_prefix=settings.encoder_passage_prefix,
            batch_size=settings.remote_batch_size,
            batch_characters=settings.remote_batch_characters,
            batch_settings=" and ".join(
                variable(settings, name) for name in ("remote_batch_size", "remote_batch_characters")
            ),
            check_s=settings.remote_check_s,
            ready=ready,
            setting=variable(settings, "remote_urls"),
        )
        self._close_encoder = encoder.close
        return encoder

    def _encoder_state(self) -> Callable[[bool], None]:
        """Return what sets the readiness from a thread, where the default retriever needs the encoder."""
        settings, loop = self._settings, asyncio.get_running_loop()
        default = settings.default_retriever or "hybrid"
        needed = "dense" in (settings.hybrid_components if default == "hybrid" else (default,))

        def ready(serving: bool) -> None:
            if needed:
                loop.call_soon_threadsafe(self._set_ready, "the encoder", serving)

        return ready


def _end() -> None:
    """Have this process end: what it serves would grow old, and it may not write any more."""
    os.kill(os.getpid(), signal.SIGTERM)


def _quotas(settings: RetrieverSettings) -> Quotas:
    def limit(name: str) -> Limit:
        return Limit(getattr(settings, name), variable(settings, name))

    return Quotas(
        limit("max_collection_passages"),
        limit("max_collection_bytes"),
        limit("max_tenant_passages"),
        Limit(_tenant_bytes(settings), variable(settings, "max_tenant_bytes")),
        limit("max_tenant_collections"),
        limit("max_collections"),
    )


def _tenant_bytes(settings: RetrieverSettings) -> int:
    """Return the most bytes of a tenant's passages, 0 for no bound: an only user has all of the disk."""
    if settings.max_tenant_bytes is not None:
        return settings.max_tenant_bytes
    if settings.store == "milvus" or not settings.knows_callers:
        return 0
    there = next(
        folder for folder in (settings.home.absolute(), *settings.home.absolute().parents) if folder.exists()
    )
    return shutil.disk_usage(there).total // _TENANT_OF_DISK


def _load_encoder(settings: RetrieverSettings) -> Encoder:
    # In a thread of its own: converting a model takes seconds, in which health must answer.
    if settings.encoder.startswith("triton://"):
        return _triton_encoder(settings)
    from evenmesh_retriever.backends.dense.in_process import encoder_in_process
    from evenmesh_retriever.backends.dense.model_options import ModelOptions

    name = variable(settings, "encoder")
    try:
        return encoder_in_process(
            settings.encoder,
            ModelOptions(
                settings.encoder_pooling, settings.encoder_query_prefix, settings.encoder_passage_prefix
            ),
            device=settings.encoder_device,
            precision=settings.encoder_precision,
            threads=settings.encoder_threads,
            setting=name,
            batch=settings.encoder_batch,
            require_gpu=settings.require_gpu,
            engine=settings.cpu_engine,
            engine_setting=variable(settings, "cpu_engine"),
            conversions=Conversions.of_user(settings.home),
        )
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"{name}={settings.encoder!r} {_needs(error)}; {name}=remote encodes on servers, and empty "
            "leaves dense retrieval out"
        ) from None


def _needs(error: ModuleNotFoundError) -> str:
    """Return what a model needs, and what brings it."""
    return (
        f"needs {error.name}, which is not installed: in a checkout, pip install ./models "
        "'./services/retriever[models]' (images: a VARIANT other than remote)"
    )


def _triton_encoder(settings: RetrieverSettings) -> Encoder:
    name = variable(settings, "encoder")
    with _extra("triton", f"{name}={settings.encoder!r} needs"):
        from evenmesh_retriever.backends.dense.triton_encoder import TritonEncoder
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
    try:
        from evenmesh_retriever.backends.splade.sparse_encoder import SpladeEncoder
    except ModuleNotFoundError as error:
        raise CannotStart(f"{variable(settings, 'splade_model')} {_needs(error)}") from None

    return SpladeEncoder(
        settings.splade_model,
        device=settings.encoder_device,
        setting=variable(settings, "splade_model"),
        batch=settings.encoder_batch,
        require_gpu=settings.require_gpu,
    )


def _load_milvus(
    settings: RetrieverSettings, encoder: Encoder | None, sparse: SparseTextEncoder | None
) -> tuple[MilvusStore, Callable[[Mapping[str, Retriever]], dict[str, Retriever]]]:
    # In a thread, and only where it is used: importing its client takes a second.
    with _extra("milvus", f"{variable(settings, 'store')}='milvus' needs"):
        from evenmesh_retriever.backends.milvus.opening import opened
    return opened(settings, encoder, sparse, _quotas(settings))


def _web_class() -> type[SearxSources]:
    # In a thread, and only where it is used: it brings a client of the web.
    with _extra("web", "web sources need"):
        from evenmesh_retriever.backends.web.source import SearxSources
    return SearxSources


@contextmanager
def _extra(name: str, needs: str) -> Iterator[None]:
    """Raise CannotStart where an import of the block misses what an extra of this distribution brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"{needs} {error.name}, which is not installed: "
            f"in a checkout, pip install './services/retriever[{name}]'"
        ) from None


if __name__ == "__main__":
    sys.exit(run_service("retriever", RetrieverSettings, RetrieverService))
