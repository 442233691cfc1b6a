"""Settings of the evaluator, read from ``EVENMESH_EVALUATOR_*``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.storage.sql_settings import DatabaseSettings


class EvaluatorSettings(DatabaseSettings):
    """Settings of the evaluator."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_EVALUATOR_")

    DATABASE_FILE: ClassVar[str] = "evaluator/observations.db"

    port: int = Field(default=7074, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""
    max_work: int = Field(default=262_144, ge=1)
    """Requests and observations in flight. KiB, [1, inf)."""
    observation_log: str = Field(default="", repr=False, validation_alias="EVENMESH_OBSERVATION_LOG")
    """Redis or Valkey from which observations come besides `Observe`, the same as the orchestrators'."""
    observe_window: int = Field(default=256, ge=1, le=10_000)
    """Most observations of one stream on their way to disk at a time. Observations, [1, 10000]."""
    commit_size: int = Field(default=512, ge=1, le=10_000)
    """Most observations that share one transaction. Observations, [1, 10000]."""
    tenant_mb: int = Field(default=4096, ge=1)
    """Most observations of a tenant stored. MiB, [1, inf)."""
    tenant_runs: int = Field(default=10_000, ge=1)
    """Most runs of a tenant. Runs, [1, inf)."""
    tenant_configurations: int = Field(default=10_000, ge=1)
    """Most configurations of a tenant. Configurations, [1, inf)."""
    observation_days: int | None = Field(default=None, ge=1, le=4000)
    """How long an observation is kept after it was stored, with its texts; reports keep its numbers. Unset:
    for good, and a tenant that keeps as much as it may stores no more. Days, [1, 4000]."""
    fairness_window_s: float = Field(default=3600.0, ge=60, le=86_400)
    """Length of the window over which metrics report fairness, up to now. Seconds, [60, 86400]."""
    statement_key: Path | None = None
    """Ed25519 private key that signs statements, a PEM file; unset: there are no statements. It is read again
    when it changes."""
    statement_min_asks: int = Field(default=10, ge=1, le=1_000_000)
    """Fewest asks that a statement says anything of a configuration with. Asks, [1, 1000000]."""
    statement_epsilon: float | None = Field(default=None, gt=0, le=100)
    """Privacy budget of one ask on each day of a statement; unset: no noise. Nats, (0, 100]."""
    provider_days: int = Field(default=400, ge=0, le=4000)
    """How long what was shown of each provider is kept by day, for statements and fairness over time; 0 keeps
    none. Days, [0, 4000]."""
    compute_threads: int = Field(default=1, ge=1, le=256)
    """Threads that measure observations too large for the event loop. Threads, [1, 256]."""
    measures_threads: int = Field(default=2, ge=1, le=256)
    """Threads that compute the measures of requests. Threads, [1, 256]."""
    embedding_model: str = ""
    """Encoder of the similarity `embedding_cosine`: a folder or a name; empty: the bundled all-MiniLM-L6-v2.
    No model of a similarity is downloaded: by name it must be in the local Hugging Face cache."""
    bert_score_model: str = ""
    """Encoder of the similarity `bert_score`: a folder or a name; empty: none."""
    nli_model: str = ""
    """Classifier of the similarities `nli` and `nli_question`: a folder or a name; empty: none."""
    answer_equivalence_model: str = ""
    """Classifier of the similarity `answer_equivalence`: a folder or a name; empty: none."""
    model_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one matrix product; unset: PyTorch chooses. Threads, [1, 1024]."""
