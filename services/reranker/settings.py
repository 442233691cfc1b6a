"""Settings of the reranker, from ``RAGMESH_RERANKER_…``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meshkit.settings import ServiceSettings


class RerankerSettings(ServiceSettings):
    """What the reranker scores with, and how."""

    model_config = SettingsConfigDict(env_prefix="RAGMESH_RERANKER_")

    port: int = Field(default=7072, ge=0, le=65535)
    max_work: int = Field(default=4096, ge=1)
    """Admission capacity. Pairs of query and passage, [1, inf)."""
    default_reranker: Literal["cross-encoder", "rankrag", "none"] = "rankrag"
    """Reranker of requests that name none."""
    generator_target: str = Field(default="dns:///127.0.0.1:7073", min_length=1)
    """The generator, which `rankrag` asks."""
    rankrag_model: str = ""
    """Model of the generator that judges for `rankrag`; empty: its default."""
    rankrag_template: str = ""
    """Prompt by which it judges, such as `rankrag-context-ranking-claim`; empty: the model's default."""
    cross_encoder: str = ""
    """Model of `cross-encoder`: a folder or a hub repository; empty: there is none."""
    allow_download: bool = False
    """Whether a model that is not here may be fetched from the hub."""
    device: str = Field(default="auto", min_length=1)
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``; auto is the first GPU, or else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number type of matrix products; auto is bfloat16 where the device has fast arithmetic for it."""
    max_length: int | None = Field(default=None, ge=16, le=2**16)
    """Longest pair; unset: what the model reads. Tokens, [16, 65536]."""
    batch_size: int = Field(default=16, ge=1, le=4096)
    """Most pairs in a batch. Pairs, [1, 4096]."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Most padded tokens in a batch. Tokens, [1, inf)."""
    batch_delay_ms: float = Field(default=2.0, ge=0, le=1000)
    """Longest wait of a request for others to share its batch. Milliseconds, [0, 1000]."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product; unset: the processor's cores. [1, 1024]."""
