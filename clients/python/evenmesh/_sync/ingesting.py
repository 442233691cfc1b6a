"""Ingest passages. Written by hand, as is ``_async/ingesting.py``, whose comment says why they differ."""

import grpc

from evenmesh._sync.calls import checked_timeout
from evenmesh._sync.retrieval import INGEST_TIMEOUT_S, RetrievalCalls
from evenmesh.codec.mapping import decode
from evenmesh.codec.values import flag
from evenmesh.ingest import IngestStream, OnProgress, PassageSource, checked, requests
from evenmesh.types.collection import Ingested, Lexical
from evenmesh.wire.errors import AlreadyExists, InvalidField


class IngestCalls(RetrievalCalls):
    """Ingest passages."""

    def ingest(
        self,
        source: PassageSource,
        collection: str,
        *,
        create: bool = True,
        lexical: Lexical | None = None,
        on_progress: OnProgress | None = None,
        timeout: float = INGEST_TIMEOUT_S,
    ) -> Ingested:
        """Add passages to a collection, or replace those of equal id; all of them or, on any error, none.

        Args:
            source: passages, or a file (see :mod:`evenmesh.files.passages`), which is checked first.
            collection: its name; 1 to 64 of a-z, 0-9, ``-`` and ``_``.
            create: create the collection if there is none.
            lexical: how to index the collection if it is created; one that exists must be indexed so already.
            on_progress: called with the number of passages sent so far.
            timeout: seconds for sending and indexing.

        Returns:
            What the ingest did; it is durable and served by then.

        Raises:
            ReadError: the file cannot be read; with the number of the line at fault.
            InvalidField: the collection is indexed otherwise than ``lexical``, or an argument is wrong.
        """
        self._check_open()
        timeout, create = checked_timeout(timeout), flag("create", create)
        passages = checked(source)
        if lexical is not None:
            self._ensure(collection, lexical, create=create, timeout=timeout)
        stream = IngestStream(requests(passages, collection, create=create, on_progress=on_progress))
        call = self._collections.Ingest.future(iter(stream), timeout=timeout)
        try:
            return decode(Ingested, call.result())
        except grpc.RpcError as exc:
            if stream.failure is not None:
                raise stream.failure from None
            raise self._error(exc, "retriever") from exc
        finally:
            call.cancel()

    def _ensure(self, name: str, lexical: Lexical, *, create: bool, timeout: float) -> None:
        """Create the collection, or check that it is indexed as ``lexical`` says."""
        if create:
            try:
                self.create_collection(name, lexical=lexical, timeout=timeout)
            except AlreadyExists:
                pass
            else:
                return
        there = self.collection(name, timeout=timeout).lexical
        if not lexical.agrees_with(there):
            raise InvalidField(
                "lexical", f"collection {name!r} exists and is indexed with {there}, which cannot change"
            )
