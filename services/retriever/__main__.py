"""Runs the retriever: ``python -m services.retriever``; settings from ``RAGMESH_RETRIEVER_…``."""

from __future__ import annotations

import sys

from meshkit import logs
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.server import Registration, ServerStartError, run, serve
from meshkit.settings import load, variable
from meshkit.telemetry import Telemetry
from ragmesh.retriever.v1 import collection_service_pb2, retriever_service_pb2
from ragmesh.retriever.v1.collection_service_pb2_grpc import add_CollectionServiceServicer_to_server
from ragmesh.retriever.v1.retriever_service_pb2_grpc import add_RetrieverServiceServicer_to_server
from services.retriever.analyzer import UnicodeWordAnalyzer
from services.retriever.backends.catalogue import Catalogue
from services.retriever.backends.local.build import Recipe
from services.retriever.backends.local.store import LocalStore
from services.retriever.engine import RetrieverEngine
from services.retriever.ports import CannotStart, Encoder
from services.retriever.servicer import CollectionServicer, RetrieverServicer
from services.retriever.settings import RetrieverSettings

RETRIEVER_NAME = retriever_service_pb2.DESCRIPTOR.services_by_name["RetrieverService"].full_name
"""Full name of the service that ranks."""
COLLECTION_NAME = collection_service_pb2.DESCRIPTOR.services_by_name["CollectionService"].full_name
"""Full name of the service that keeps collections."""


class RetrieverService:
    """Everything of one retriever process, put together; also its lifecycle.

    Args:
        settings: the settings.
    """

    def __init__(self, settings: RetrieverSettings) -> None:
        self._settings = settings
        self._pool = ComputePool(settings.threads, "retriever")
        self._store: LocalStore | None = None
        self._retriever = RetrieverServicer(self._pool)
        self._collections = CollectionServicer(
            self._pool,
            Admission(settings.max_ingest_bytes, "bytes"),
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
        try:
            encoder = await self._pool.run(_load_encoder, settings) if settings.encoder else None
            analyzer = UnicodeWordAnalyzer()
            catalogue = await self._pool.run(Catalogue, settings, analyzer, encoder)
            store = LocalStore(settings.home / "collections", Recipe(analyzer, encoder), catalogue.prepare)
            await store.start()
        except CannotStart as error:
            raise ServerStartError(str(error)) from None
        self._store = store
        self._retriever.open(
            RetrieverEngine(
                store,
                catalogue.retrievers,
                catalogue.default,
                self._pool,
                Admission(settings.max_work, "texts"),
            )
        )
        self._collections.open(store)

    async def stop(self) -> None:
        """Closes the collections."""
        if self._store is not None:
            await self._store.stop()
        self._pool.close()


def _load_encoder(settings: RetrieverSettings) -> Encoder:
    # In a thread of its own: importing PyTorch takes seconds, in which health must answer.
    from services.retriever.backends.dense.sentence_encoder import SentenceEncoder

    return SentenceEncoder(
        settings.encoder,
        device=settings.encoder_device,
        precision=settings.encoder_precision,
        threads=settings.encoder_threads,
        setting=variable(settings, "encoder"),
    )


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RetrieverSettings)
    logs.configure("retriever", settings)
    service = RetrieverService(settings)
    telemetry = Telemetry.from_settings("retriever", settings)
    await serve("retriever", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
