"""Ingest passages from a program with an event loop. Written by hand, as is ``_sync/ingesting.py``."""

import asyncio

from evenmesh._async.calls import AsyncCalls
from evenmesh._async.retrieval import INGEST_TIMEOUT_S
from evenmesh.ingest import OnProgress, PassageSource
from evenmesh.types.collection import Ingested, Lexical


class AsyncIngestCalls(AsyncCalls):
    """Ingest passages."""

    async def ingest(
        self,
        source: PassageSource,
        collection: str,
        *,
        create: bool = True,
        lexical: Lexical | None = None,
        on_progress: OnProgress | None = None,
        timeout: float = INGEST_TIMEOUT_S,
    ) -> Ingested:
        """Add passages to a collection, all or none; as :meth:`evenmesh.Client.ingest`.

        The source is read, and ``on_progress`` called, in a thread; cancelling this cancels the ingest.
        """
        from evenmesh._sync.client import Client

        self._check_open()
        # Files are read and parsed in a thread anyway, and a call of grpc.aio that is rejected while it sends
        # often ends as INTERNAL instead of with the reason; the sync call keeps the reason.
        with Client(self.addresses) as client:
            return await asyncio.to_thread(
                client.ingest,
                source,
                collection,
                create=create,
                lexical=lexical,
                on_progress=on_progress,
                timeout=timeout,
            )
