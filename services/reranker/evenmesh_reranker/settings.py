"""Settings of the reranker, from ``EVENMESH_RERANKER_…``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.remote.settings import RemoteSettings
from evenmesh_kit.settings import variable
from evenmesh_kit.storage.sql_settings import DatabaseSettings


class RerankerSettings(DatabaseSettings, RemoteSettings):
    """Settings of one reranker process."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_RERANKER_")

    DATABASE_FILE: ClassVar[str] = "reranker/feedback.db"

    port: int = Field(default=7072, ge=0, le=65535)
    max_work: int = Field(default=4096, ge=1)
    """Admission capacity. Pairs of query and passage, [1, inf)."""
    default_reranker: Literal["cross-encoder", "rankrag", "remote", "none"] = "cross-encoder"
    """Reranker of requests that name none."""
    remote_server: Literal["tei", "cohere", "jina", "infinity", "vllm"] = "tei"
    """Kind of the model servers of ``remote``; ``cohere`` for others with the shape of Cohere."""
    remote_model: str = Field(default="", max_length=256, validate_default=True)
    """Model that the servers of ``remote`` are asked for; empty for the only one they have."""
    remote_scores: Literal["probability", "logit", "cosine"] = "probability"
    """What the servers' scores are: in [0, 1], log-odds, or in [-1, 1]. TEI and infinity give the first or
    the second, as they are asked."""
    remote_fusion: float = Field(default=0.0, ge=0, le=10)
    """Weight of the first stage's standardized scores beside the log-odds of ``remote``, where a request
    names none; 0 ranks by the reranker alone. [0, 10]."""
    remote_batch_size: int = Field(default=32, ge=1, le=1000)
    """Most passages in one request to a model server. Passages, [1, 1000]."""
    remote_batch_characters: int = Field(default=2**18, ge=1024, le=2**24)
    """Most characters in one request to a model server, the query counted with each passage; a longer passage
    goes alone. [1024, 2^24]."""
    remote_check_s: float = Field(default=5.0, ge=0.1, le=3600)
    """Time between two checks whether the model servers answer. Seconds, [0.1, 3600]."""
    generator_target: str = Field(default="dns:///127.0.0.1:7073", min_length=1)
    """Generator that judges for `rankrag`."""
    upstream_calls: int = Field(default=1000, ge=1, le=1_000_000)
    """Most calls at a time to the generator; further ones wait, and tenants take turns. Keep it below
    ``EVENMESH_GENERATOR_MAX_CONNECTION_STREAMS``. Calls, [1, 1000000]."""
    rankrag_model: str = ""
    """Model of the generator that judges for `rankrag`; empty: the generator's default."""
    rankrag_template: str = ""
    """Prompt for judging, such as `rankrag-context-ranking-claim`; empty: the model's default."""
    cross_encoder: str = "bundled"
    """Default model of `cross-encoder`, until a version of the model store is promoted: a folder, a hub
    repository, or `bundled`; empty: none."""
    allow_download: bool = False
    """Whether a model may be downloaded from the hub."""
    device: str = Field(default="auto", min_length=1)
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``; auto is the first GPU, or the CPU without one."""
    require_gpu: bool = False
    """Whether the service refuses to start where its models would run on the CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number type of matrix products; auto is bfloat16 if the device computes it fast."""
    max_length: int | None = Field(default=None, ge=16, le=2**16)
    """Longest pair; unset: the model's own limit. Tokens, [16, 65536]."""
    batch_size: int | None = Field(default=None, ge=1, le=4096)
    """Most pairs in a batch; unset: 16 on a CPU, on a GPU as many as ``batch_tokens`` allows. [1, 4096]."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Most padded tokens in a batch. Tokens, [1, inf)."""
    batch_delay_ms: float = Field(default=2.0, ge=0, le=1000)
    """Longest wait of a request for others that share its batch. Milliseconds, [0, 1000]."""
    max_request_tokens: int = Field(default=13_000, ge=1)
    """Most tokens of the pairs of one request to the cross-encoder, [1, inf). The bundled
    model reads the default in less than five seconds of one processor; raise it on a GPU."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product in PyTorch; unset: one for each core. [1, 1024]."""
    cpu_engine: Literal["auto", "torch", "openvino"] = "auto"
    """What computes the cross-encoder on a CPU: ``openvino``, ``torch``, or ``auto``, which is OpenVINO where
    it is installed and can compute the model."""
    parallel: int | None = Field(default=None, ge=1, le=1024)
    """Pairs that OpenVINO computes at a time, each on one core; unset: one for each core that this process
    may use. [1, 1024]."""
    model_poll_s: float = Field(default=5.0, gt=0, le=3600)
    """Time between two looks for versions that another process promoted. Seconds, (0, 3600]."""
    model_store: str = Field(default="", max_length=4096)
    """Where model versions are: a folder, or an address of a bucket such as ``s3://bucket/folder``; empty:
    ``reranker/models`` under home. Rerankers with one database share it."""
    model_cache_mb: int = Field(default=10_000, ge=1)
    """Most disk under home that versions of a bucket take, the three used last apart; a larger version is not
    fetched. MB, [1, inf)."""
    keep_versions: int = Field(default=5, ge=1, le=1000)
    """Versions kept of those served before, and as many of the newest others, for all agents and for each
    agent; the rest is removed after an hour. Versions, [1, 1000]."""
    agent_memory_mb: int = Field(default=1024, ge=1)
    """Most memory of agents' own models; the least recently used are dropped. MB, [1, inf)."""
    max_tenant_exports: int = Field(default=8, ge=1)
    """Most streams of ``ExportFeedback`` of a tenant at a time, [1, inf)."""
    max_registered_agents: int = Field(default=1000, ge=1)
    """Most registered agents: each has tokens in every model. Agents, [1, inf)."""
    feedback_commit_size: int = Field(default=2000, ge=1, le=100_000)
    """Most items of feedback in one transaction. Items, [1, 100000]."""
    feedback_in_flight: int = Field(default=20_000, ge=4)
    """Most items of feedback in flight to the disk; one agent may have a quarter, and one tenant three
    quarters. Items, [4, inf)."""
    feedback_per_day: int = Field(default=100_000, ge=1)
    """Most items of one agent in a UTC day. Items, [1, inf)."""
    feedback_total: int = Field(default=1_000_000, ge=1)
    """Most items of one agent stored at a time. Items, [1, inf)."""
    feedback_agents: int = Field(default=10_000, ge=1)
    """Most agents of a tenant, registered or not. Agents, [1, inf)."""
    feedback_tenant_mb: int = Field(default=4096, ge=1)
    """Most feedback of one tenant stored at a time. MB, [1, inf)."""
    feedback_registered_only: bool = False
    """Whether only registered agents may give feedback."""
    feedback_served_only: bool = False
    """Whether feedback is rejected unless it is for a ranking that this service served."""
    feedback_constant_run: int = Field(default=500, ge=2)
    """Length of a run of equal items of an agent that is kept out of training. Items, [2, inf)."""
    feedback_retention_days: int = Field(default=365, ge=1)
    """Age at which feedback is deleted. Days, [1, inf)."""
    served_memory: int = Field(default=100_000, ge=1)
    """Served rankings kept in memory, if feedback is checked against them; the tenant with most loses its
    oldest. [1, inf)."""
    served_tenant_mb: int = Field(default=1024, ge=1)
    """Most disk that the served rankings of one tenant take; its oldest are deleted. MB, [1, inf)."""
    served_retention_days: int = Field(default=7, ge=1)
    """Age at which served rankings are deleted from disk. Days, [1, inf)."""

    @field_validator("model_store")
    @classmethod
    def _is_one_place(cls, value: str) -> str:
        if "::" in value or value != value.strip():
            raise ValueError("must be a folder or one address such as s3://bucket/folder")
        if "://" not in value and value and not Path(value).is_absolute():
            raise ValueError("must be an absolute path, or an address such as s3://bucket/folder")
        return value

    @field_validator("default_reranker")
    @classmethod
    def _has_servers(cls, value: str, info: ValidationInfo) -> str:
        if value == "remote" and "remote_urls" in info.data and not info.data["remote_urls"]:
            raise ValueError(f"needs model servers: set {variable(cls, 'remote_urls')}")
        return value

    @field_validator("remote_model")
    @classmethod
    def _named(cls, value: str, info: ValidationInfo) -> str:
        server = info.data.get("remote_server")
        if not value and info.data.get("remote_urls") and server in ("cohere", "jina"):
            raise ValueError(f"must name a model, which {server} asks for")
        return value
