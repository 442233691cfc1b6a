"""Settings of the evaluator, read from ``RAGMESH_EVALUATOR_*``."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from meshkit.settings import ServiceSettings

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class EvaluatorSettings(ServiceSettings):
    """What the evaluator can be told."""

    model_config = SettingsConfigDict(
        env_prefix="RAGMESH_EVALUATOR_",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        allow_inf_nan=False,
    )

    port: int = Field(default=7074, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""
    max_work: int = Field(default=262_144, ge=1)
    """Requests and observations in flight. KiB, [1, inf)."""
    database_url: str = ""
    """Database: ``sqlite:///FILE`` or ``postgresql://…``; empty means a SQLite file under home."""
    lock_timeout_s: float = Field(default=5.0, ge=0, le=60)
    """How long a locked SQLite database is waited for. Seconds, [0, 60]."""
    observe_window: int = Field(default=256, ge=1, le=10_000)
    """Observations of one stream on their way to disk before the next is read. Observations, [1, 10000]."""
    commit_size: int = Field(default=512, ge=1, le=10_000)
    """Most observations that share one transaction. Observations, [1, 10000]."""
    fairness_window_s: float = Field(default=3600.0, ge=60, le=86_400)
    """Time over which metrics tell of fairness, up to now. Seconds, [60, 86400]."""
    compute_threads: int = Field(default=1, ge=1, le=256)
    """Threads that measure what is too large for the event loop. Threads, [1, 256]."""
    measuring_threads: int = Field(default=2, ge=1, le=256)
    """Threads that compute what callers bring, apart from those that observing needs. Threads, [1, 256]."""
    embedding_model: str = ""
    """Encoder of the similarity `embedding_cosine`: a folder or a name; empty: the bundled all-MiniLM-L6-v2.
    No model of a similarity is downloaded: by name it must be in the local Hugging Face cache."""
    bert_score_model: str = ""
    """Encoder of the similarity `bert_score`: a folder or a name; empty: there is none."""
    nli_model: str = ""
    """Classifier of the similarities `nli` and `nli_question`: a folder or a name; empty: there is none."""
    answer_equivalence_model: str = ""
    """Classifier of the similarity `answer_equivalence`: a folder or a name; empty: there is none."""
    model_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product; unset: as PyTorch chooses. [1, 1024]."""

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
        """The database's URL with the driver the store uses."""
        if not self.database_url:
            return URL.create(_DRIVERS["sqlite"], database=str(self.home / "evaluator" / "observations.db"))
        url = make_url(self.database_url)
        return url.set(drivername=_DRIVERS[url.get_backend_name()])
