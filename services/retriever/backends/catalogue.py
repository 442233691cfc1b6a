"""The retrievers of a server, made from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from services.retriever.backends.bm25.csr import CsrIndex
from services.retriever.backends.bm25.kernel import Kernel, choose
from services.retriever.backends.bm25.retriever import Bm25Retriever
from services.retriever.backends.bm25.weighting import Lucene, Okapi
from services.retriever.backends.hybrid import HybridRetriever
from services.retriever.backends.segments.lexical import index as lexical_index
from services.retriever.domain import Lexical, RetrieverInfo
from services.retriever.ports import Analyzer, Encoder, Retriever, Snapshot
from services.retriever.settings import RetrieverSettings

_CPU = "cpu"


class Catalogue:
    """All retrievers that can run, by name.

    Args:
        settings: parameters and engines.
        analyzer: the analyzer of a name.
        encoder: makes the vectors of ``dense``; None leaves ``dense`` and ``hybrid`` out.
    """

    def __init__(
        self,
        settings: RetrieverSettings,
        analyzer: Callable[[str], Analyzer],
        encoder: Encoder | None,
    ) -> None:
        kernel = choose()
        lucene = _lucene(settings, analyzer, kernel)
        retrievers: list[Retriever] = [lucene, _okapi(settings, analyzer, kernel)]
        if encoder is not None:
            dense = _dense(settings, encoder)
            retrievers += [dense, _hybrid(lucene, dense, encoder)]
        self._retrievers = {retriever.info.name: retriever for retriever in retrievers}
        self._default = settings.default_retriever or ("bm25-lucene" if encoder is None else "hybrid")

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """By name, in the order they are listed."""
        return self._retrievers

    @property
    def default(self) -> str:
        """Name of the default one."""
        return self._default

    def prepare(self, snapshot: Snapshot) -> None:
        """Makes a snapshot ready for every retriever."""
        for retriever in self._retrievers.values():
            retriever.prepare(snapshot)


def _lucene(settings: RetrieverSettings, analyzer: Callable[[str], Analyzer], kernel: Kernel) -> Retriever:
    k1, b = settings.lucene_k1, settings.lucene_b
    info = RetrieverInfo(
        name="bm25-lucene",
        description=(
            "BM25 with Lucene's idf, which is never negative; the recommended BM25; "
            f"k1={k1:g}, b={b:g} where the collection has none of its own, kernel {kernel.name}"
        ),
        engine="csr",
        model="",
        device=_CPU,
    )
    return Bm25Retriever(
        info,
        analyzer,
        lambda lexical: Lucene(_or(lexical.k1, k1), _or(lexical.b, b)),
        partial(lexical_index, kernel=kernel),
        partial(CsrIndex, kernel=kernel),
    )


def _okapi(settings: RetrieverSettings, analyzer: Callable[[str], Analyzer], kernel: Kernel) -> Retriever:
    k1, b = settings.bm25_k1, settings.bm25_b
    engine = settings.bm25_engine
    info = RetrieverInfo(
        name="bm25",
        description=(
            "BM25Okapi, with the scores of the rank_bm25 package: idf below 0 is a quarter of the mean; "
            f"k1={k1:g}, b={b:g} where the collection has none of its own"
            + (f", kernel {kernel.name}" if engine == "csr" else "")
        ),
        engine=engine,
        model="",
        device=_CPU,
    )

    def weighting(lexical: Lexical) -> Okapi:
        return Okapi(_or(lexical.k1, k1), _or(lexical.b, b))

    if engine == "csr":
        return Bm25Retriever(
            info, analyzer, weighting, partial(lexical_index, kernel=kernel), partial(CsrIndex, kernel=kernel)
        )
    from services.retriever.backends.bm25.reference import RankBm25Index
    from services.retriever.backends.segments.reference import index as reference_index

    return Bm25Retriever(info, analyzer, weighting, reference_index, RankBm25Index)


def _or(own: float | None, setting: float) -> float:
    return setting if own is None else own


def _dense(settings: RetrieverSettings, encoder: Encoder) -> Retriever:
    from services.retriever.backends.dense.retriever import DenseRetriever
    from services.retriever.backends.segments.vectors import index as vector_index

    info = RetrieverInfo(
        name="dense",
        description=f"cosine of {encoder.name} vectors, {encoder.precision}, exact search",
        engine="faiss-flat",
        model=encoder.name,
        device=encoder.device,
    )
    return DenseRetriever(info, encoder, vector_index, cache=settings.query_cache)


def _hybrid(lexical: Retriever, dense: Retriever, encoder: Encoder) -> Retriever:
    info = RetrieverInfo(
        name="hybrid",
        description=f"reciprocal rank fusion (k=60) of {lexical.info.name} and {dense.info.name}",
        engine=f"{lexical.info.engine}+{dense.info.engine}",
        model=encoder.name,
        device=encoder.device,
    )
    return HybridRetriever(info, lexical, dense)
