"""Settings of the reranker, from ``RAGMESH_RERANKER_…``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meshkit.settings import ServiceSettings


class RerankerSettings(ServiceSettings):
    """What the reranker serves, and how."""

    model_config = SettingsConfigDict(env_prefix="RAGMESH_RERANKER_")

    port: int = Field(default=7072, ge=0, le=65535)
    max_work: int = Field(default=10_000, ge=1)
    """Admission capacity: passages to score. Passages, [1, inf)."""
    default_reranker: Literal["rankrag", "cross-encoder", "none"] = "rankrag"
    """Reranker of requests that name none."""
    generator_target: str = Field(default="dns:///127.0.0.1:7073", min_length=1)
    """The generator whose model judges relevance for ``rankrag``."""
    rankrag_model: str = ""
    """Generator's model that judges; empty: the generator's default."""
    cross_encoder: str = ""
    """Cross-encoder by folder or hub name; empty: there is none."""
    allow_download: bool = False
    """Whether a cross-encoder that is not here may be fetched from the hub."""
    device: str = Field(default="auto", min_length=1)
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``; auto is the first GPU, or else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the cross-encoder; auto is bfloat16 where the device has fast arithmetic for it."""
    max_length: int | None = Field(default=None, ge=16, le=2**16)
    """Longest pair; unset: the model's own. Tokens, [16, 65536]."""
    batch_size: int = Field(default=16, ge=1, le=4096)
    """Pairs of one forward pass. Pairs, [1, 4096]."""
    batch_delay_ms: float = Field(default=2.0, ge=0, le=1000)
    """Longest wait for pairs of other callers. Milliseconds, [0, 1000]."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product; unset: torch's own choice. [1, 1024]."""
