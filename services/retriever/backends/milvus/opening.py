"""A server's settings turned into collections in Milvus and the retrievers over them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from meshkit.settings import variable
from services.retriever.backends.milvus.connection import connect
from services.retriever.backends.milvus.retrievers import over_milvus
from services.retriever.backends.milvus.store import MilvusStore, Recipe
from services.retriever.backends.segments.quotas import Quotas
from services.retriever.ports import Encoder, Retriever
from services.retriever.settings import RetrieverSettings

if TYPE_CHECKING:
    from services.retriever.backends.splade.sparse_encoder import SparseTextEncoder


class MilvusOpening:
    """What a server keeps in Milvus, and how it searches there.

    Args:
        settings: where Milvus is, and how passages are indexed.
        encoder: makes dense vectors; None for none.
        sparse: makes weights of terms; None for none.
        quotas: how much may be held.
    """

    def __init__(
        self,
        settings: RetrieverSettings,
        encoder: Encoder | None,
        sparse: SparseTextEncoder | None,
        quotas: Quotas,
    ) -> None:
        self._settings = settings
        self._encoder = encoder
        self._sparse = sparse
        self.store = MilvusStore(
            partial(
                connect,
                settings.milvus_uri,
                settings.milvus_token_file,
                settings.milvus_timeout_s,
                variable(settings, "milvus_uri"),
                variable(settings, "milvus_token_file"),
            ),
            Recipe(
                encoder,
                sparse,
                settings.milvus_dense_index,
                settings.lucene_k1,
                settings.lucene_b,
                quotas,
            ),
        )

    def retrievers(self, local: Mapping[str, Retriever]) -> dict[str, Retriever]:
        """The retrievers over the collections of the store, which has started; see :func:`over_milvus`."""
        return over_milvus(
            local,
            self._encoder,
            self._sparse,
            version=self.store.version,
            cache=self._settings.query_cache,
        )
