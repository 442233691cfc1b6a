"""Open the collections in Milvus, and the retrievers over them, from a server's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from evenmesh_kit.settings import variable
from evenmesh_retriever.backends.milvus.connection import connect
from evenmesh_retriever.backends.milvus.retrievers import over_milvus
from evenmesh_retriever.backends.milvus.store import MilvusIndexing, MilvusStore
from evenmesh_retriever.backends.segments.quotas import Quotas
from evenmesh_retriever.backends.splade.postings import SparseTextEncoder
from evenmesh_retriever.ports import Encoder, Retriever
from evenmesh_retriever.settings import RetrieverSettings


def opened(
    settings: RetrieverSettings, encoder: Encoder | None, sparse: SparseTextEncoder | None, quotas: Quotas
) -> tuple[MilvusStore, Callable[[Mapping[str, Retriever]], dict[str, Retriever]]]:
    """Return what a server keeps in Milvus, and how it searches there once that is started.

    Args:
        settings: where Milvus is, and how passages are indexed.
        encoder: makes dense vectors; None for none.
        sparse: makes weights of terms; None for none.
        quotas: how much may be held.
    """
    store = MilvusStore(
        partial(
            connect,
            settings.milvus_uri,
            settings.milvus_token_file,
            settings.milvus_timeout_s,
            variable(settings, "milvus_uri"),
            variable(settings, "milvus_token_file"),
        ),
        MilvusIndexing(
            encoder, sparse, settings.milvus_dense_index, settings.lucene_k1, settings.lucene_b, quotas
        ),
    )

    def retrievers(local: Mapping[str, Retriever]) -> dict[str, Retriever]:
        return over_milvus(local, encoder, sparse, version=store.version, cache=settings.query_cache_bytes)

    return store, retrievers
