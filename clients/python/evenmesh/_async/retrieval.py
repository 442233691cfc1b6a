"""Calls of the retriever: retrieval alone, collections, passages."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, Unpack

from evenmesh._async import adapter
from evenmesh._async.calls import AsyncCalls
from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode, encode
from evenmesh.codec.values import flag, several, text
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.types.collection import Collection, Deleted, Lexical
from evenmesh.types.passage import Passage
from evenmesh.types.retrieval import (
    Embeddings,
    Retrieval,
    RetrieveOptions,
    Retriever,
    Source,
    retrieve_request,
)
from evenmesh.wire.errors import DeadlineExceeded

INGEST_TIMEOUT_S: Final = 3_600.0
EMBEDDED_EVERY_S: Final = 0.5
DELETE_BATCH: Final = 10_000
"""Most passages that one call removes."""

OnEmbedded = Callable[[float], None]
"""Called with the share of a collection's passages that have vectors, 0 to 1."""

OnCollection = Callable[[Collection], None]
"""Called with the collection whose passages follow."""


class AsyncRetrievalCalls(AsyncCalls):
    """Retrieve passages, and manage collections of them."""

    async def retrieve(
        self, query: str, *, timeout: float | None = None, **options: Unpack[RetrieveOptions]
    ) -> Retrieval:
        """Return scored passages of the retriever, and one ranking of them or several sampled ones.

        Args:
            query: 1 to 8,192 bytes, not only white space.
            timeout: seconds the call may take.
            options: what to retrieve from and how, see :class:`evenmesh.RetrieveOptions`.
        """
        request = retrieve_request(query, options)
        return codec.retrieval(await self._call("retriever", self._retriever.Retrieve, request, timeout))

    async def embed(
        self, texts: Iterable[str], *, queries: bool = False, model: str = "", timeout: float | None = None
    ) -> Embeddings:
        """Return the vectors of texts, as the ``dense`` retriever makes them.

        Args:
            texts: 1 to 256, each of 1 to 65,536 bytes, not only white space.
            queries: whether they are searched by; else they are found.
            model: name of the encoder; empty for that of the mesh.
            timeout: seconds the call may take.
        """
        searched_by = flag("queries", queries)
        kind = retriever_pb2.TEXT_KIND_QUERY if searched_by else retriever_pb2.TEXT_KIND_PASSAGE
        given = [text("texts", one) for one in several("texts", texts)]
        request = retriever_pb2.EmbedRequest(texts=given, kind=kind, model=model)
        return codec.embeddings(await self._call("retriever", self._retriever.Embed, request, timeout))

    async def retrievers(self, *, timeout: float | None = None) -> list[Retriever]:
        """Return the retrievers of the mesh, the default first."""
        request = retriever_pb2.ListRetrieversRequest()
        reply = await self._call("retriever", self._retriever.ListRetrievers, request, timeout)
        return [decode(Retriever, one) for one in reply.retrievers]

    async def sources(self, *, timeout: float | None = None) -> list[Source]:
        """Return the web-search sources of the mesh, by name."""
        request = retriever_pb2.ListSourcesRequest()
        reply = await self._call("retriever", self._retriever.ListSources, request, timeout)
        return [decode(Source, one) for one in reply.sources]

    async def create_collection(
        self,
        name: str,
        *,
        description: str = "",
        lexical: Lexical | None = None,
        timeout: float | None = None,
    ) -> Collection:
        """Create an empty collection.

        Args:
            name: 1 to 64 of a-z, 0-9, ``-`` and ``_``.
            description: free text, at most 1,024 bytes.
            lexical: how its text is indexed; the server's default without it.
            timeout: seconds the call may take.

        Raises:
            AlreadyExists: the name is taken.
        """
        values = {"name": name, "description": description, "lexical": lexical}
        request = encode(collection_pb2.CreateCollectionRequest, values)
        reply = await self._call("retriever", self._collections.CreateCollection, request, timeout)
        return decode(Collection, reply.collection)

    async def collection(self, name: str, *, timeout: float | None = None) -> Collection:
        """Return one collection."""
        request = collection_pb2.GetCollectionRequest(name=text("name", name))
        reply = await self._call("retriever", self._collections.GetCollection, request, timeout)
        return decode(Collection, reply.collection)

    async def collections(self, *, timeout: float | None = None) -> list[Collection]:
        """Return all collections, by name."""
        request = collection_pb2.ListCollectionsRequest()
        reply = await self._call("retriever", self._collections.ListCollections, request, timeout)
        return [decode(Collection, one) for one in reply.collections]

    async def until_embedded(
        self, name: str, *, on_progress: OnEmbedded | None = None, timeout: float = INGEST_TIMEOUT_S
    ) -> Collection:
        """Wait until all passages of a collection have vectors; return at once where the server makes none.

        Args:
            name: the collection.
            on_progress: called twice a second with the share of passages that have vectors, 0 to 1.
            timeout: seconds to wait.

        Raises:
            DeadlineExceeded: some passages still lack vectors; the server continues to make them.
        """
        ends = time.monotonic() + timeout
        while (found := await self.collection(name)).lacks_vectors:
            if on_progress is not None:
                on_progress(found.embedded)
            if time.monotonic() > ends:
                raise DeadlineExceeded(
                    f"{found.embedded:.1%} of the passages of {name!r} have vectors so far; the others follow"
                )
            await adapter.sleep(EMBEDDED_EVERY_S)
        return found

    def passages(
        self,
        name: str,
        *,
        prefix: str = "",
        on_collection: OnCollection | None = None,
        timeout: float = INGEST_TIMEOUT_S,
    ) -> AsyncIterator[Passage]:
        """Yield all passages of one version of a collection, by ascending id, as they arrive.

        Closing the iterator ends the call.

        Args:
            name: the collection.
            prefix: what ids begin with, at most 256 bytes; all passages without it.
            on_collection: called with the collection at that version before the first passage arrives.
            timeout: seconds for the whole call.
        """

        def read(message: collection_pb2.ListPassagesResponse) -> Iterator[Passage]:
            if on_collection is not None and message.HasField("collection"):
                on_collection(decode(Collection, message.collection))
            return map(codec.passage, message.passages)

        request = collection_pb2.ListPassagesRequest(
            collection=text("collection", name), id_prefix=text("prefix", prefix)
        )
        return self._stream("retriever", self._collections.ListPassages, request, read, timeout)

    async def delete_passages(
        self, name: str, passage_ids: Iterable[str], *, timeout: float | None = None
    ) -> Deleted:
        """Remove passages from a collection; ids that it does not have are counted, and no error.

        Removing is durable when this returns. More than 10,000 ids are sent in several calls, of which each
        makes a version; if one fails, all ids may be sent again.

        Args:
            name: the collection.
            passage_ids: ids of the passages, at least 1.
            timeout: seconds for each call.

        Raises:
            NotFound: there is no such collection.
            InvalidField: there is no id.
        """
        ids = [text("passage_ids", one) for one in several("passage_ids", passage_ids)]
        deleted = missing = 0
        for start in range(0, max(1, len(ids)), DELETE_BATCH):
            request = collection_pb2.DeletePassagesRequest(
                collection=text("collection", name), passage_ids=ids[start : start + DELETE_BATCH]
            )
            reply = await self._call("retriever", self._collections.DeletePassages, request, timeout)
            deleted, missing = deleted + reply.deleted, missing + reply.missing
        return Deleted(decode(Collection, reply.collection), deleted, missing)

    async def delete_collection(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a collection with all its versions."""
        request = collection_pb2.DeleteCollectionRequest(name=text("name", name))
        await self._call("retriever", self._collections.DeleteCollection, request, timeout)
