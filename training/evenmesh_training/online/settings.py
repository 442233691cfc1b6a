"""Settings of the online trainer, from ``EVENMESH_TRAINER_…``."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.settings import ServiceSettings
from evenmesh_training.online.training_examples import Learns


class OnlineSettings(ServiceSettings):
    """Settings of one trainer process.

    Home, database and default model are those of the reranker; the trainer reads the reranker's variables.
    """

    model_config = SettingsConfigDict(
        env_prefix="EVENMESH_TRAINER_",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        allow_inf_nan=False,
    )

    port: int = Field(default=7076, ge=0, le=65535)
    reranker_target: str = Field(default="dns:///127.0.0.1:7072", min_length=1)
    """Reranker that promotes versions."""
    retriever_target: str = Field(default="dns:///127.0.0.1:7071", min_length=1)
    """Retriever that has the texts of passages."""
    queries: int = Field(default=256, ge=1)
    """b of Algorithm 2: queries of an agent between two trainings. Queries, [1, inf)."""
    wake_s: float = Field(default=5.0, gt=0, le=3600)
    """Time between two looks for agents with enough feedback. Seconds, (0, 3600]."""
    lease_s: float = Field(default=60.0, ge=0.5, le=3600)
    """Time after which another trainer may take over the agent of a killed one. Seconds, [0.5, 3600]."""
    at_once: int = Field(default=1, ge=1, le=1000)
    """Trainers that train at a time, of all with one database; the others wait for a lease to end, and take
    over where a trainer dies. Trainers, [1, 1000]."""
    learns: Learns = "model"
    """What a round learns: ``model``, the agent's parameters; ``fusion``, how its scores are fused with those
    of the first stage and with similar passages; or ``both``."""
    retriever: str = Field(default="", max_length=256)
    """First stage whose scores are fused, by name, as agents ask with; empty: the retriever's default."""
    parameters: Literal["adapter", "full"] = "adapter"
    """What an agent gets: a low-rank adapter of the model of all agents, or a model of its own."""
    rank: int = Field(default=8, ge=1, le=1024)
    """Rank of an adapter, [1, 1024]."""
    layers: str = Field(default=".*", min_length=1)
    """Regular expression: an adapter changes the linear layers whose name contains a match."""
    held_back: float = Field(default=0.25, gt=0, lt=1)
    """Share of the queries since the last training, the newest, that is held out to compare on, (0, 1)."""
    level: float = Field(default=0.05, gt=0, lt=1)
    """Level of the one-sided paired tests that find a candidate better, not inferior, or worse, (0, 1)."""
    margin: float = Field(default=0.05, gt=0, lt=1)
    """Loss of nDCG that a promotion may risk: a candidate serves that is shown to lose less, or to be better.
    A smaller margin needs more queries held back. (0, 1)."""
    most_items: int = Field(default=200_000, ge=1)
    """Most items of an agent in a training, the newest. Items, [1, inf)."""
    epochs: int = Field(default=2, ge=1, le=1000)
    """Passes over an agent's feedback, [1, 1000]."""
    learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Learning rate of Adam, (0, 1]; unset: 1e-5 for all parameters (section 5.1), 1e-3 for an adapter, half
    of which starts at zero."""
    batch_size: int = Field(default=32, ge=1, le=2**16)
    """Pairs of one gradient step. Pairs, [1, 65536]."""
    max_length: int = Field(default=256, ge=16, le=2**16)
    """Longest pair in training (section 5.1). Tokens, [16, 65536]."""
    seed: int = Field(default=0, ge=0)
    """Seed of shuffling, dropout and tests, [0, inf)."""
    device: str = Field(default="auto", min_length=1)
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``; auto is the first GPU, or the CPU without one."""
    threads: int | None = Field(default=1, ge=1, le=1024)
    """Threads of one matrix product; unset: one for each core. [1, 1024]."""
    niceness: int = Field(default=10, ge=0, le=19)
    """Niceness of the process, so that serving ones go first, [0, 19]."""
    promote_s: float = Field(default=300.0, ge=0, le=86_400)
    """Longest wait for a reranker that is away when a version is promoted. Seconds, [0, 86400]."""

    @field_validator("layers")
    @classmethod
    def _is_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"must be a regular expression: {error}") from None
        return value
