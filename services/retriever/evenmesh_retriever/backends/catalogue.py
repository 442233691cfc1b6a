"""Make the retrievers of a server from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from evenmesh_kit.settings import variable
from evenmesh_retriever.backends.bm25 import kernel
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.retriever import Bm25Retriever
from evenmesh_retriever.backends.bm25.weighting import LongWeighting, Lucene, Okapi, PlusWeighting, Weighting
from evenmesh_retriever.backends.hybrid import Component, Fusion, HybridRetriever
from evenmesh_retriever.backends.segments.building.merge import MergeOrder
from evenmesh_retriever.backends.segments.files.manifest import SegmentManifest
from evenmesh_retriever.backends.segments.impacts import ImpactCache
from evenmesh_retriever.backends.segments.lexical import index as lexical_index
from evenmesh_retriever.backends.splade.postings import SparseTextEncoder
from evenmesh_retriever.domain import RetrieverInfo
from evenmesh_retriever.ports import Analyzer, CannotStart, Encoder, Retriever, Snapshot
from evenmesh_retriever.settings import RetrieverSettings

_CPU = "cpu"


class RetrieverCatalogue:
    """All retrievers that can run.

    Attributes:
        retrievers: by name, in the order they are listed.
        default: name of the default one.

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
        kernel.warm()
        retrievers = _bm25(settings, analyzer)
        if encoder is not None:
            retrievers.append(_dense(settings, encoder))
        self._impacts: ImpactCache | None = None
        self._sparse = sparse
        if sparse is not None:
            self._impacts = ImpactCache(settings.kept_in / "splade", read_only=settings.follow is not None)
            retrievers.append(_splade(sparse, self._impacts))
        self.retrievers = {retriever.info.name: retriever for retriever in retrievers}
        if elsewhere is not None:
            self.retrievers = elsewhere(self.retrievers)
        if encoder is not None or "dense" not in settings.hybrid_components:
            self.retrievers["hybrid"] = _hybrid(settings, self.retrievers)
        self.default = settings.default_retriever or ("bm25-lucene" if encoder is None else "hybrid")
        if self.default not in self.retrievers:
            raise CannotStart(
                f"{variable(settings, 'default_retriever')}={self.default!r}: there is none on this server, "
                f"which has {', '.join(self.retrievers)}"
            )

    def prepare(self, snapshot: Snapshot) -> None:
        """Make a snapshot ready for every retriever."""
        for retriever in self.retrievers.values():
            retriever.prepare(snapshot)

    @property
    def ahead(self) -> Callable[[str], AbstractContextManager[Callable[[Sequence[str]], None]]] | None:
        """Makes what retrievers keep of passages before a write takes its turn; None if that is nothing."""
        if self._impacts is None or self._sparse is None:
            return None
        return partial(self._impacts.ahead, self._sparse)

    def carry(self, tenant: str, plan: MergeOrder, manifest: SegmentManifest) -> None:
        """Take over what retrievers keep about passages whose segments have been merged into one."""
        if self._impacts is not None:
            self._impacts.carry(tenant, plan, manifest)


def _bm25(settings: RetrieverSettings, analyzer: Callable[[str], Analyzer]) -> list[Retriever]:
    """Return the variants of BM25."""

    def variant(
        name: str,
        description: str,
        weighting: Callable[..., Weighting],
        own: tuple[float, float],
        *delta: float,
        by_reference: bool = False,
    ) -> Retriever:
        k1, b = own
        described = f"{description}; k1={k1:g}, b={b:g} where the collection has none of its own"
        described += "".join(f", delta={one:g}" for one in delta)
        info = RetrieverInfo(
            name=name,
            description=described if by_reference else f"{described}, kernel numba",
            engine="rank_bm25" if by_reference else "csr",
            model="",
            device=_CPU,
        )
        return Bm25Retriever[Any](
            info,
            analyzer,
            lambda lexical: weighting(_or(lexical.k1, k1), _or(lexical.b, b), *delta),
            *(_reference() if by_reference else (lexical_index, CsrIndex)),
        )

    lucene, paper = (settings.lucene_k1, settings.lucene_b), (settings.bm25_k1, settings.bm25_b)
    return [
        variant(
            "bm25-lucene",
            "BM25 with Lucene's idf, which is never negative; the recommended BM25",
            Lucene,
            lucene,
        ),
        variant(
            "bm25",
            "BM25Okapi, with the scores of the rank_bm25 package: idf below 0 is a quarter of the mean",
            Okapi,
            paper,
            by_reference=settings.bm25_engine != "csr",
        ),
        variant(
            "bm25-plus",
            "BM25+, with the scores of the rank_bm25 package: a term that is there counts, however long the "
            "passage",
            PlusWeighting,
            paper,
            settings.plus_delta,
        ),
        variant(
            "bm25-l",
            "BM25L, with the scores of the rank_bm25 package, which multiplies by the count once more than "
            "the paper",
            LongWeighting,
            paper,
            settings.long_delta,
        ),
    ]


def _reference() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from evenmesh_retriever.backends.bm25.reference import RankBm25Index
    from evenmesh_retriever.backends.segments.reference import index as reference_index

    return reference_index, RankBm25Index


def _or(own: float | None, setting: float) -> float:
    return setting if own is None else own


def _dense(settings: RetrieverSettings, encoder: Encoder) -> Retriever:
    from evenmesh_retriever.backends.dense import gpu
    from evenmesh_retriever.backends.dense.build import FLAT_UP_TO, HNSW_UP_TO, TARGET_RECALL
    from evenmesh_retriever.backends.dense.retriever import DenseRetriever
    from evenmesh_retriever.backends.segments.vectors import GpuIndexCache
    from evenmesh_retriever.backends.segments.vectors import index as vector_index

    why_not = gpu.why_not() if settings.dense_gpu_bytes else f"{variable(settings, 'dense_gpu_bytes')}=0"
    if why_not and settings.require_gpu and settings.dense_gpu_bytes:
        raise CannotStart(
            f"{variable(settings, 'require_gpu')}=true, and vectors would be searched on the processor: "
            f"{why_not}; {variable(settings, 'dense_gpu_bytes')}=0 allows it"
        )
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
    index = partial(vector_index, gpu=None if owner is None else GpuIndexCache(owner))
    return DenseRetriever(info, encoder, index, settings.query_cache_bytes)


def _splade(encoder: SparseTextEncoder, impacts: ImpactCache) -> Retriever:
    from evenmesh_retriever.backends.splade.retriever import SpladeRetriever

    info = RetrieverInfo(
        name="splade",
        description=f"inner product of term weights by {encoder.name}, exact, kernel numba",
        engine="impacts",
        model=encoder.name,
        device=encoder.device,
    )
    return SpladeRetriever(info, encoder, impacts.index)


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
