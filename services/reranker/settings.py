"""Settings of the reranker, from ``RAGMESH_RERANKER_…``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from meshkit.settings import ServiceSettings

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class RerankerSettings(ServiceSettings):
    """What the reranker scores with, and how."""

    model_config = SettingsConfigDict(
        env_prefix="RAGMESH_RERANKER_",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        allow_inf_nan=False,
    )

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
    """Model of `cross-encoder` until a version of the model store is promoted: a folder, a hub repository, or
    `bundled` where one ships; empty: there is none."""
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
    model_poll_s: float = Field(default=5.0, gt=0, le=3600)
    """How often is looked for versions that another process promoted. Seconds, (0, 3600]."""
    keep_versions: int = Field(default=5, ge=1, le=1000)
    """Model versions kept that were served before, and as many of the newest others, of all agents' and of
    each agent's own; the rest is removed after an hour. Versions, [1, 1000]."""
    agent_memory_mb: int = Field(default=1024, ge=1)
    """Most memory of agents' own models; least recently used ones are let go of. MB, [1, inf)."""
    max_registered_agents: int = Field(default=1000, ge=1)
    """Most agents that may be registered: each has tokens in every model. Agents, [1, inf)."""
    database_url: str = ""
    """Database of feedback: ``sqlite:///FILE`` or ``postgresql://…``; empty: a SQLite file under home."""
    lock_timeout_s: float = Field(default=5.0, ge=0, le=60)
    """How long a locked SQLite database is waited for. Seconds, [0, 60]."""
    feedback_commit_size: int = Field(default=2000, ge=1, le=100_000)
    """Most items of feedback that share one transaction. Items, [1, 100000]."""
    feedback_in_flight: int = Field(default=20_000, ge=4)
    """Most items of feedback on their way to disk; one agent may have a quarter. Items, [4, inf)."""
    feedback_per_day: int = Field(default=100_000, ge=1)
    """Most items of one agent in a day of UTC. Items, [1, inf)."""
    feedback_total: int = Field(default=1_000_000, ge=1)
    """Most items of one agent stored at a time. Items, [1, inf)."""
    feedback_agents: int = Field(default=10_000, ge=1)
    """Most agents that there may be, registered or not. Agents, [1, inf)."""
    feedback_registered_only: bool = False
    """Whether feedback is taken of registered agents only."""
    feedback_served_only: bool = False
    """Whether feedback is refused that is not for a ranking this service served."""
    feedback_constant_run: int = Field(default=500, ge=2)
    """Equal items of an agent in a row from which on they are kept out of training. Items, [2, inf)."""
    feedback_retention_days: int = Field(default=365, ge=1)
    """How long feedback is kept. Days, [1, inf)."""
    served_memory: int = Field(default=100_000, ge=1)
    """Rankings served that are remembered in memory, if feedback is checked against them. [1, inf)."""
    served_retention_days: int = Field(default=7, ge=1)
    """How long they are remembered on disk. Days, [1, inf)."""

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if not value:
            return value
        try:
            url = make_url(value)
        except ArgumentError:
            raise ValueError("must be sqlite:///FILE or postgresql://USER@HOST/NAME") from None
        if url.get_backend_name() not in _DRIVERS:
            raise ValueError("must be a sqlite or postgresql URL")
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise ValueError("must name a file: what is only in memory is not durable")
        return value

    def database(self) -> URL:
        """The database's URL with the driver that is used."""
        if not self.database_url:
            return URL.create(_DRIVERS["sqlite"], database=str(self.home / "reranker" / "feedback.db"))
        url = make_url(self.database_url)
        return url.set(drivername=_DRIVERS[url.get_backend_name()])
