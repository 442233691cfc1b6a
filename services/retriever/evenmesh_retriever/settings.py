"""Read the retriever's settings from ``EVENMESH_RETRIEVER_*``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.remote.settings import RemoteSettings
from evenmesh_kit.security.triton_tls import TritonTls
from evenmesh_kit.settings import variable
from evenmesh_retriever.backends.web.settings import WebSourceSettings

_COMPONENT: Final = "(bm25|bm25-lucene|bm25-l|dense|splade)"
_COMPONENTS: Final = re.compile(rf"^{_COMPONENT}(\+{_COMPONENT})*$")
REMOTE: Final = "remote"
"""Value of the setting ``encoder`` that names an encoder of model servers."""
_SOURCE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class RetrieverSettings(TritonTls, RemoteSettings):
    """What can be set about the retriever."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_RETRIEVER_")

    port: int = Field(default=7071, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""
    max_work: int = Field(default=2**18, ge=20)
    """Admission capacity. A query may ask for a twentieth of it, and a tenant may have half of it in flight.
    Unit: tokens that the encoder reads; 256 bytes that BM25 reads count as one (docs/operate/limits.md).
    [20, inf)."""
    max_ingest_bytes: int = Field(default=2**30, ge=2**20)
    """Most memory of unfinished ingest streams, together. Bytes, decoded, [2^20, inf)."""
    max_tenant_ingest_bytes: int = Field(default=2**29, ge=2**20)
    """Most memory of a tenant's unfinished ingest streams together. Bytes, decoded, [2^20, inf)."""
    max_tenant_ingests: int = Field(default=8, ge=1)
    """Most ingest streams of a tenant at a time, [1, inf)."""
    max_tenant_listings: int = Field(default=8, ge=1)
    """Most streams of ``ListPassages`` and ``GetPassages`` of a tenant at a time, [1, inf): each keeps a
    version on disk."""
    ingest_idle_s: float = Field(default=60.0, gt=0, le=86_400)
    """Longest wait for passages of an ingest stream, after which it ends and nothing of it is kept. Seconds,
    (0, 86400]."""
    threads: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1, le=256)
    """Queries computed at a time, [1, 256]; the number of processors by default."""

    max_collection_passages: int = Field(default=0, ge=0)
    """Most passages of a collection, [0, inf); 0 for no bound."""
    max_collection_bytes: int = Field(default=0, ge=0)
    """Most ids, titles, texts and attributes of a collection. Bytes, [0, inf); 0 for no bound."""
    max_tenant_passages: int = Field(default=0, ge=0)
    """Most passages of a tenant's collections together, [0, inf); 0 for no bound."""
    max_tenant_bytes: int | None = Field(default=None, ge=0)
    """Most ids, titles, texts and attributes of a tenant's collections together. Bytes, [0, inf); 0 for no
    bound. Default: with authentication a sixteenth of the disk of ``EVENMESH_HOME``, else and in Milvus none.
    With their vectors and while segments are merged, collections take a few times as much."""
    max_tenant_collections: int = Field(default=100, ge=0)
    """Most collections of a tenant, [0, inf); 0 for no bound."""
    max_collections: int = Field(default=10_000, ge=0)
    """Most collections of all tenants, [0, inf); 0 for no bound."""
    verify_bytes: int = Field(default=32 * 2**20, ge=0)
    """Files of a collection, the smallest first, that are checked before it is served; the others are checked
    while it serves. Bytes, [0, inf)."""

    follow: Path | None = None
    """``EVENMESH_HOME`` of another retriever, whose collections this one serves and never writes: a read
    replica. Unset to keep collections of its own."""
    follow_look_s: float = Field(default=2.0, ge=0.05, le=3600)
    """Time between two looks for new versions of what is followed. Seconds, [0.05, 3600]."""
    follow_stale_s: float = Field(default=60.0, ge=1, le=86_400)
    """How long no look may have succeeded before a read replica is NOT_SERVING. Seconds, [1, 86400]."""
    keep_s: float = Field(default=0.0, ge=0, le=86_400)
    """How long files stay that no version needs any more, for read replicas on a file system that takes them
    away from readers, such as NFS; the same in the replicas, which end reads after half of it. Seconds,
    [0, 86400]; 0 on a local file system, where open files stay."""
    lease_s: float = Field(default=15.0, ge=1, le=3600)
    """How long a retriever of another machine waits for a sign of this one before it takes over the
    collections. Seconds, [1, 3600]."""
    lease_wait_s: float | None = Field(default=None, ge=0, le=31_536_000)
    """How long a start waits for another retriever that keeps the collections. Seconds, [0, 31536000].
    Default: 120 with ``share_port``, else 0, which ends the start."""

    store: Literal["segments", "milvus"] = "segments"
    """Where collections are: on this machine's disk, or in Milvus. See docs/guides/milvus.md."""
    milvus_uri: str = Field(default="http://127.0.0.1:19530", pattern=r"^(https?|tcp|unix)://?[^\s]+$")
    """Where Milvus is; with a path, a database of it."""
    milvus_token_file: Path | None = None
    """File with the token that Milvus asks for, ``user:password`` or a key."""
    milvus_timeout_s: float = Field(default=10.0, gt=0, le=600)
    """How long a call to Milvus may take. Seconds, (0, 600]."""
    milvus_dense_index: Literal["FLAT", "HNSW", "AUTOINDEX"] = "FLAT"
    """Dense index of collections that are new in Milvus; ``FLAT`` compares with every vector."""

    bm25_engine: Literal["csr", "rank_bm25"] = "csr"
    """Engine of ``bm25``: our sparse one, or the reference, which is hundreds of times slower."""
    bm25_k1: float = Field(default=1.5, gt=0, le=100)
    """k1 of ``bm25``, (0, 100]."""
    bm25_b: float = Field(default=0.75, ge=0, le=1)
    """b of ``bm25``, [0, 1]."""
    lucene_k1: float = Field(default=1.2, gt=0, le=100)
    """k1 of ``bm25-lucene``, (0, 100]."""
    lucene_b: float = Field(default=0.75, ge=0, le=1)
    """b of ``bm25-lucene``, [0, 1]."""
    plus_delta: float = Field(default=1.0, ge=0, le=10)
    """delta of ``bm25-plus``, whose k1 and b are those of ``bm25``, [0, 10]."""
    long_delta: float = Field(default=0.5, gt=0, le=10)
    """delta of ``bm25-l``, whose k1 and b are those of ``bm25``, (0, 10]."""

    remote_server: Literal["tei", "openai", "vllm"] = "tei"
    """Kind of the model servers of the encoder ``remote``: text-embeddings-inference, or ``/embeddings`` as
    OpenAI, infinity, Ollama and others have it; ``vllm`` asks vLLM also to cut long texts."""
    remote_model: str = Field(default="", max_length=256)
    """Model that the servers of the encoder ``remote`` are asked for; empty for TEI, which has one."""
    remote_batch_size: int = Field(default=32, ge=1, le=2048)
    """Most texts in one request to a model server; TEI may allow fewer and is asked. Texts, [1, 2048]."""
    remote_batch_characters: int = Field(default=2**17, ge=1024, le=2**24)
    """Most characters in one request to a model server; a longer passage goes alone. [1024, 2^24]."""
    remote_check_s: float = Field(default=5.0, ge=0.1, le=3600)
    """Time between two checks whether the model servers answer. Seconds, [0.1, 3600]."""
    encoder: str = Field(default="all-MiniLM-L6-v2", validate_default=True)
    """Model of ``dense``: the bundled ``all-MiniLM-L6-v2``, a folder, a name in the local Hugging Face cache,
    ``triton://host:port/model`` for one that a Triton server runs, ``remote`` for one of the model servers of
    ``remote_urls``, or empty for none."""
    encoder_device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """``auto``, ``cpu`` or ``cuda:0``."""
    encoder_batch: int | None = Field(default=None, ge=1, le=65_536)
    """Most passages that are encoded together; unset: 16 on a CPU, on a GPU any number within a quarter
    million characters. Passages, [1, 65536]."""
    require_gpu: bool = False
    """Whether the service refuses to start where encoders of this process, or the search of vectors unless
    ``dense_gpu_bytes`` is 0, would run on the CPU."""
    encoder_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the encoder's matrix products; ``auto`` is bf16 where the processor has it."""
    encoder_threads: int = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2), ge=1, le=256)
    """PyTorch's threads of one encoding, [1, 256]; half of the processors by default."""
    cpu_engine: Literal["auto", "torch", "openvino"] = "auto"
    """What computes the encoder on a CPU: ``openvino``, ``torch``, or ``auto``, which is OpenVINO where
    it is installed and can compute the model."""
    encoder_pooling: Literal["", "mean", "cls", "max", "lasttoken"] = ""
    """How token vectors become one; empty for what the model's folder says, which is the mean if it says
    nothing, as of Contriever and E5."""
    encoder_query_prefix: str | None = Field(default=None, max_length=1024)
    """What queries begin with, such as ``query: `` for E5; unset for what the model's folder says."""
    encoder_passage_prefix: str | None = Field(default=None, max_length=1024)
    """What passages begin with, such as ``passage: `` for E5; unset for what the model's folder says."""
    embed_at_once: int = Field(default=5_000, ge=0)
    """Passages of an ingest up to which it returns once they have vectors; more of them are found by bm25 at
    once and get their vectors in the background, [0, inf)."""
    query_cache_bytes: int = Field(default=16 * 2**20, ge=0)
    """Queries and their vectors that are kept in memory, by tenant; a tenant has at most a quarter. Bytes,
    [0, inf); 0 keeps none."""
    dense_gpu_bytes: int = Field(default=8 * 2**30, ge=0)
    """Memory of the first GPU for vectors, where ``faiss-gpu`` is installed and sees one. Bytes, [0, inf); 0
    searches on the processor."""
    splade_model: str = ""
    """Model of ``splade``: a folder, a name in the local Hugging Face cache, or empty for none."""

    hybrid: str = Field(default="bm25-lucene+dense", pattern=_COMPONENTS.pattern)
    """Retrievers that ``hybrid`` fuses, joined by ``+``: of bm25, bm25-lucene, bm25-l, dense, splade."""
    hybrid_fusion: Literal["rrf", "score", "standard"] = "standard"
    """``rrf`` adds up reciprocal ranks, ``score`` scores brought to [0, 1], ``standard`` z-scores."""
    hybrid_k: float = Field(default=60, ge=0, le=10_000)
    """How little the first ranks stand out in ``rrf``, [0, 10000]."""
    hybrid_weights: str = Field(default="", pattern=r"^$|^\d+(\.\d+)?(,\d+(\.\d+)?)*$")
    """Weight of each retriever that ``hybrid`` fuses, such as ``1,0.5``; empty for 1 each."""
    default_retriever: Literal[
        "", "bm25", "bm25-lucene", "bm25-plus", "bm25-l", "dense", "splade", "hybrid"
    ] = ""
    """Retriever of requests that name none; empty for ``hybrid``, or ``bm25-lucene`` without an encoder."""

    web_sources: dict[str, WebSourceSettings] = Field(default_factory=dict, max_length=64)
    """Web-search sources as JSON: by name, each with the ``url`` of a SearxNG server."""
    web_readers: int = Field(default=2, ge=1, le=64)
    """Processes that read pages of the web, where there are web sources. Processes, [1, 64]."""

    @field_validator("web_sources")
    @classmethod
    def _have_names(cls, value: dict[str, WebSourceSettings]) -> dict[str, WebSourceSettings]:
        for name in value:
            if not _SOURCE_NAME.fullmatch(name):
                raise ValueError(
                    f"source {name!r}: a name is 1 to 64 of a-z, 0-9, '-' and '_', first a letter or digit"
                )
        return value

    @field_validator("store")
    @classmethod
    def _followed_on_disk(cls, value: str, info: ValidationInfo) -> str:
        if value != "segments" and info.data.get("follow") is not None:
            raise ValueError("is shared by its retrievers: unset EVENMESH_RETRIEVER_FOLLOW")
        return value

    @property
    def kept_in(self) -> Path:
        """Home of the retriever that keeps the collections: this one, or the one that is followed."""
        return self.follow or self.home

    @property
    def hybrid_components(self) -> tuple[str, ...]:
        """Names of what ``hybrid`` fuses."""
        return tuple(self.hybrid.split("+"))

    @property
    def hybrid_shares(self) -> tuple[float, ...]:
        """Weight of each of them."""
        if not self.hybrid_weights:
            return (1.0,) * len(self.hybrid_components)
        return tuple(float(weight) for weight in self.hybrid_weights.split(","))

    @field_validator("encoder")
    @classmethod
    def _spoken_with_as_asked(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("triton_ssl") and not value.startswith("triton://"):
            raise ValueError("is not a Triton server's, and EVENMESH_RETRIEVER_TRITON_SSL is set")
        return value

    @field_validator("encoder")
    @classmethod
    def _served(cls, value: str, info: ValidationInfo) -> str:
        urls = info.data.get("remote_urls")
        if value == REMOTE and urls is not None:
            if not urls:
                raise ValueError(f"needs model servers: set {variable(cls, 'remote_urls')}")
            if info.data.get("remote_server") != "tei" and not info.data.get("remote_model"):
                raise ValueError(f"needs a model to ask for: set {variable(cls, 'remote_model')}")
        elif value != REMOTE and urls:
            raise ValueError(f"is not {REMOTE!r}, and {variable(cls, 'remote_urls')} is set")
        return value

    @field_validator("hybrid")
    @classmethod
    def _each_once(cls, value: str, info: ValidationInfo) -> str:
        names = value.split("+")
        if len(set(names)) < len(names):
            raise ValueError("names a retriever twice")
        if "splade" in names and not info.data.get("splade_model"):
            raise ValueError("needs a SPLADE model, and EVENMESH_RETRIEVER_SPLADE_MODEL is empty")
        return value

    @field_validator("hybrid_weights")
    @classmethod
    def _one_each(cls, value: str, info: ValidationInfo) -> str:
        names = str(info.data.get("hybrid", "")).split("+")
        weights = value.split(",") if value else []
        if weights and len(weights) != len(names):
            raise ValueError(f"has {len(weights)} weights for {len(names)} retrievers")
        if weights and not any(map(float, weights)):
            raise ValueError("has no weight above 0")
        return value

    @field_validator("default_retriever")
    @classmethod
    def _exists(cls, value: str, info: ValidationInfo) -> str:
        fused = str(info.data.get("hybrid", "")).split("+") if value == "hybrid" else [value]
        if "dense" in fused and not info.data.get("encoder"):
            raise ValueError("needs an encoder, and EVENMESH_RETRIEVER_ENCODER is empty")
        if "splade" in fused and not info.data.get("splade_model"):
            raise ValueError("needs a SPLADE model, and EVENMESH_RETRIEVER_SPLADE_MODEL is empty")
        return value
