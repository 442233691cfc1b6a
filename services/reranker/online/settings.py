"""Settings of the online trainer, from ``RAGMESH_TRAINER_…``."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from meshkit.settings import ServiceSettings


class OnlineSettings(ServiceSettings):
    """When agents' own parameters are trained, and how.

    What it shares with the reranker (home, database, the model to begin with) it reads from the reranker's
    own variables.
    """

    model_config = SettingsConfigDict(
        env_prefix="RAGMESH_TRAINER_",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        allow_inf_nan=False,
    )

    port: int = Field(default=7076, ge=0, le=65535)
    reranker_target: str = Field(default="dns:///127.0.0.1:7072", min_length=1)
    """The reranker, which says what serves and is asked to promote."""
    retriever_target: str = Field(default="dns:///127.0.0.1:7071", min_length=1)
    """The retriever, which has the passages' texts."""
    queries: int = Field(default=256, ge=1)
    """b of Algorithm 2: queries of an agent after which its parameters are trained. Queries, [1, inf)."""
    wake_s: float = Field(default=5.0, gt=0, le=3600)
    """How often is looked whether an agent gave enough. Seconds, (0, 3600]."""
    lease_s: float = Field(default=60.0, ge=0.5, le=3600)
    """How long a trainer that was killed keeps its agent from others. Seconds, [0.5, 3600]."""
    parameters: Literal["adapter", "full"] = "adapter"
    """What an agent gets: low-rank changes to the model that serves all, or a model of its own."""
    rank: int = Field(default=8, ge=1, le=1024)
    """Rank of an adapter, [1, 1024]."""
    layers: str = Field(default=".*", min_length=1)
    """Which linear layers an adapter changes: those whose name has a match of this regular expression."""
    held_back: float = Field(default=0.25, gt=0, lt=1)
    """Share of the queries since the last training, the newest, that is not trained on but judges what comes
    of it, (0, 1)."""
    level: float = Field(default=0.05, gt=0, lt=1)
    """Level of the paired, one-sided test that finds a candidate worse, (0, 1)."""
    most_items: int = Field(default=200_000, ge=1)
    """Most items of an agent that are trained on, the newest. Items, [1, inf)."""
    epochs: int = Field(default=2, ge=1, le=1000)
    """Passes over an agent's feedback, [1, 1000]."""
    learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Largest step of Adam, (0, 1]; unset: 1e-5 for all parameters (section 5.1), 1e-3 for an adapter, whose
    half begins at zero."""
    batch_size: int = Field(default=32, ge=1, le=2**16)
    """Pairs of one gradient step. Pairs, [1, 65536]."""
    max_length: int = Field(default=256, ge=16, le=2**16)
    """Longest pair that is trained on (section 5.1). Tokens, [16, 65536]."""
    seed: int = Field(default=0, ge=0)
    """Seed of shuffling, dropout and tests, [0, inf)."""
    device: str = Field(default="auto", min_length=1)
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``; auto is the first GPU, or else the CPU."""
    threads: int | None = Field(default=1, ge=1, le=1024)
    """Threads of one matrix product; unset: the processor's cores. [1, 1024]."""
    niceness: int = Field(default=10, ge=0, le=19)
    """How far the process stands back behind serving ones, as ``nice`` has it, [0, 19]."""
    promote_s: float = Field(default=300.0, ge=0, le=86_400)
    """How long a reranker that is away is waited for to promote. Seconds, [0, 86400]."""

    @field_validator("layers")
    @classmethod
    def _is_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"must be a regular expression: {error}") from None
        return value
