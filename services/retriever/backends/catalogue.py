"""The retrievers of a server, made from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from meshkit.settings import variable
from services.retriever.backends.bm25.csr import CsrIndex
from services.retriever.backends.bm25.kernel import Kernel, choose
from services.retriever.backends.bm25.retriever import Bm25Retriever
from services.retriever.backends.bm25.weighting import Long, Lucene, Okapi, Plus
from services.retriever.backends.hybrid import Component, Fusion, HybridRetriever
from services.retriever.backends.segments.impacts import ImpactShelf
from services.retriever.backends.segments.lexical import index as lexical_index
from services.retriever.backends.segments.manifest import SegmentManifest
from services.retriever.backends.segments.merge import Plan
from services.retriever.domain import Lexical, RetrieverInfo
from services.retriever.ports import Analyzer, CannotStart, Encoder, Retriever, Snapshot
from services.retriever.settings import RetrieverSettings

if TYPE_CHECKING:
    from services.retriever.backends.splade.sparse_encoder import SparseTextEncoder

_CPU = "cpu"


class Catalogue:
    """All retrievers that can run, by name.

    Args:
        settings: parameters and engines.
        analyzer: the analyzer of a name.
        encoder: makes the vectors of ``dense``; None leaves ``dense`` out.
        sparse: makes the weights of ``splade``; None leaves ``splade`` out.
        elsewhere: makes of these retrievers, ``hybrid`` excepted, those for collections that are not on this
            machine; None if they are.

    Raises:
        CannotStart: the default, or a component of ``hybrid``, is not among the retrievers.
    """

    def __init__(
        self,
        settings: RetrieverSettings,
        analyzer: Callable[[str], Analyzer],
        encoder: Encoder | None,
        sparse: SparseTextEncoder | None = None,
        elsewhere: Callable[[Mapping[str, Retriever]], dict[str, Retriever]] | None = None,
    ) -> None:
        kernel = choose()
        retrievers = [
            _lucene(settings, analyzer, kernel),
            _okapi(settings, analyzer, kernel),
            _plus(settings, analyzer, kernel),
            _long(settings, analyzer, kernel),
        ]
        if encoder is not None:
            retrievers.append(_dense(settings, encoder))
        self._impacts: ImpactShelf | None = None
        self._sparse = sparse
        if sparse is not None:
            self._impacts = ImpactShelf(settings.home / "splade")
            retrievers.append(_splade(sparse, self._impacts, kernel))
        self._retrievers = {retriever.info.name: retriever for retriever in retrievers}
        if elsewhere is not None:
            self._retrievers = elsewhere(self._retrievers)
        if encoder is not None or "dense" not in settings.hybrid_components:
            self._retrievers["hybrid"] = _hybrid(settings, self._retrievers)
        self._default = settings.default_retriever or ("bm25-lucene" if encoder is None else "hybrid")
        if self._default not in self._retrievers:
            raise CannotStart(
                f"{variable(settings, 'default_retriever')}={self._default!r}: there is none on this server, "
                f"which has {', '.join(self._retrievers)}"
            )

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

    @property
    def ahead(self) -> Callable[[], AbstractContextManager[Callable[[Sequence[str]], None]]] | None:
        """Makes what retrievers keep of passages before a write takes its turn; None if that is nothing."""
        if self._impacts is None or self._sparse is None:
            return None
        return partial(self._impacts.ahead, self._sparse)

    def carry(self, plan: Plan, manifest: SegmentManifest) -> None:
        """Takes over what retrievers keep about passages whose segments have been merged into one."""
        if self._impacts is not None:
            self._impacts.carry(plan, manifest)


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


def _plus(settings: RetrieverSettings, analyzer: Callable[[str], Analyzer], kernel: Kernel) -> Retriever:
    k1, b, delta = settings.bm25_k1, settings.bm25_b, settings.plus_delta
    info = RetrieverInfo(
        name="bm25-plus",
        description=(
            "BM25+, with the scores of the rank_bm25 package: a term that is there counts, however long the "
            f"passage; k1={k1:g}, b={b:g} where the collection has none of its own, delta={delta:g}, "
            f"kernel {kernel.name}"
        ),
        engine="csr",
        model="",
        device=_CPU,
    )
    return Bm25Retriever(
        info,
        analyzer,
        lambda lexical: Plus(_or(lexical.k1, k1), _or(lexical.b, b), delta),
        partial(lexical_index, kernel=kernel),
        partial(CsrIndex, kernel=kernel),
    )


def _long(settings: RetrieverSettings, analyzer: Callable[[str], Analyzer], kernel: Kernel) -> Retriever:
    k1, b, delta = settings.bm25_k1, settings.bm25_b, settings.long_delta
    info = RetrieverInfo(
        name="bm25-l",
        description=(
            "BM25L, with the scores of the rank_bm25 package, which multiplies by the count once more than "
            f"the paper; k1={k1:g}, b={b:g} where the collection has none of its own, delta={delta:g}, "
            f"kernel {kernel.name}"
        ),
        engine="csr",
        model="",
        device=_CPU,
    )
    return Bm25Retriever(
        info,
        analyzer,
        lambda lexical: Long(_or(lexical.k1, k1), _or(lexical.b, b), delta),
        partial(lexical_index, kernel=kernel),
        partial(CsrIndex, kernel=kernel),
    )


def _or(own: float | None, setting: float) -> float:
    return setting if own is None else own


def _dense(settings: RetrieverSettings, encoder: Encoder) -> Retriever:
    from services.retriever.backends.dense import gpu
    from services.retriever.backends.dense.build import FLAT_UP_TO, HNSW_UP_TO, TARGET_RECALL
    from services.retriever.backends.dense.retriever import DenseRetriever
    from services.retriever.backends.segments.vectors import GpuShelf
    from services.retriever.backends.segments.vectors import index as vector_index

    why_not = gpu.why_not() if settings.dense_gpu_bytes else f"{variable(settings, 'dense_gpu_bytes')}=0"
    owner = None if why_not else gpu.GpuOwner(max_bytes=settings.dense_gpu_bytes)
    searched = f"searched on the processor ({why_not})" if owner is None else f"searched on {owner.device}"
    info = RetrieverInfo(
        name="dense",
        description=(
            f"cosine of {encoder.name} vectors, {encoder.precision}; segments up to {FLAT_UP_TO:,} passages "
            f"exactly, to {HNSW_UP_TO:,} by HNSW, beyond by IVF-PQ, with a measured recall@100 of "
            f"{TARGET_RECALL:g} or more; {searched}"
        ),
        engine="faiss" if owner is None else "faiss-gpu",
        model=encoder.name,
        device=encoder.device,
    )
    index = partial(vector_index, gpu=None if owner is None else GpuShelf(owner))
    return DenseRetriever(info, encoder, index, cache=settings.query_cache)


def _splade(encoder: SparseTextEncoder, impacts: ImpactShelf, kernel: Kernel) -> Retriever:
    from services.retriever.backends.splade.retriever import SpladeRetriever

    info = RetrieverInfo(
        name="splade",
        description=f"inner product of term weights by {encoder.name}, exact, kernel {kernel.name}",
        engine="impacts",
        model=encoder.name,
        device=encoder.device,
    )
    return SpladeRetriever(info, encoder, impacts.index, kernel)


def _hybrid(settings: RetrieverSettings, retrievers: Mapping[str, Retriever]) -> Retriever:
    names = settings.hybrid_components
    if missing := [name for name in names if name not in retrievers]:
        raise CannotStart(
            f"{variable(settings, 'hybrid')}={settings.hybrid!r}: there is no {missing[0]!r} on this server, "
            f"which has {', '.join(retrievers)}"
        )
    components = [
        Component(retrievers[name], weight, is_sparse=name != "dense")
        for name, weight in zip(names, settings.hybrid_shares, strict=True)
    ]
    fusion = Fusion(settings.hybrid_fusion, settings.hybrid_k)
    infos = [component.retriever.info for component in components]
    weighted = " and ".join(
        name if weight == 1 else f"{weight:g} × {name}"
        for name, weight in zip(names, settings.hybrid_shares, strict=True)
    )
    info = RetrieverInfo(
        name="hybrid",
        description=f"{fusion.description} of {weighted}",
        engine="+".join(one.engine for one in infos),
        model=", ".join(dict.fromkeys(one.model for one in infos if one.model)),
        device=next((one.device for one in infos if one.device != _CPU), _CPU),
    )
    return HybridRetriever(info, components, fusion)
