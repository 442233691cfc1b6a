"""Settings of the orchestrator, from ``EVENMESH_ORCHESTRATOR_*``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.settings import ServiceSettings
from evenmesh_orchestrator.conversations.conversation import Limits
from evenmesh_orchestrator.ensembles.definitions import Ensemble, EnsembleDefinition, read_ensembles
from evenmesh_orchestrator.expressions.sources import SourceCatalogue, SourceDefinition


class OrchestratorSettings(ServiceSettings):
    """The settings of the orchestrator."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_ORCHESTRATOR_")

    port: int = Field(default=7070, ge=0, le=65535)
    """Port to listen on, [0, 65535]; 0 lets the system choose."""
    max_work: int = Field(default=2000, ge=1)
    """Most answers that the asks in flight may want; an ask counts at least one. Answers, [1, inf)."""

    retriever_target: str = Field(default="dns:///127.0.0.1:7071", min_length=1)
    """gRPC target of the retriever."""
    reranker_target: str = Field(default="dns:///127.0.0.1:7072", min_length=1)
    """gRPC target of the reranker."""
    generator_target: str = Field(default="dns:///127.0.0.1:7073", min_length=1)
    """gRPC target of the generator."""
    evaluator_target: str = Field(default="dns:///127.0.0.1:7074", min_length=1)
    """gRPC target of the evaluator."""

    default_collection: str = Field(default="demo", pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """Collection of asks that name none."""
    default_reranker: str = Field(default="cross-encoder", min_length=1, max_length=128)
    """Reranker of asks that name none; ``none`` for the retriever's order."""

    sources: dict[str, SourceDefinition] = Field(default_factory=dict, max_length=256)
    """Sources that expressions can name, as JSON: by name, each with ``collection`` or ``web`` (optionally
    ``retriever`` and ``depth``), or with ``all``, parts to concatenate. See docs/guides/expressions.md."""

    ensembles: dict[str, EnsembleDefinition] = Field(default_factory=dict, max_length=64)
    """Ensembles that asks can name, as JSON: by name, each with ``members``, expressions over the sources,
    and optionally how they vote. See docs/guides/ensembles.md."""

    conversation_turns: int = Field(default=100, ge=1, le=100)
    """Most turns of a conversation. Turns, [1, 100]."""
    conversation_words: int = Field(default=20_000, ge=1)
    """Most words of a conversation, the user's and the system's. Words, [1, inf)."""
    conversation_lifetime_s: float = Field(default=3_600.0, gt=0)
    """How long a conversation can be resumed after its stream has ended. Seconds, (0, inf)."""
    conversations: int = Field(default=1_000, ge=1)
    """Most conversations stored; beyond, the tenant with most loses its oldest. [1, inf)."""
    conversation_bytes: int = Field(default=2**26, ge=2**20)
    """Most bytes of all conversations, and of turns that wait in their streams. Bytes, [1048576, inf)."""
    conversation_tenant_share: float = Field(default=0.75, gt=0, le=1)
    """Largest part of both that one tenant alone can take; several share it. Fraction, (0, 1]."""
    conversations_url: str = Field(default="", repr=False)
    """Database of conversations, ``sqlite:///FILE`` or ``postgresql://…``, which orchestrators share; empty:
    they stay in the memory of one process."""
    conversation_lease_s: float = Field(default=10.0, ge=1, le=3_600)
    """How long the conversations of an orchestrator that died stay in use, in a database. Seconds,
    [1, 3600]."""
    turn_timeout_s: float = Field(default=60.0, gt=0, le=3_600)
    """Default time for a turn of a conversation. Seconds, (0, 3600]."""

    retrieve_share: float = Field(default=0.25, gt=0, lt=1)
    """Largest part of an ask's time that retrieval may take. Fraction, (0, 1)."""
    rerank_share: float = Field(default=0.35, gt=0, lt=1)
    """Largest part of an ask's time that reranking may take; generation gets the rest. Fraction, (0, 1)."""
    closing_share: float = Field(default=0.05, gt=0, lt=1)
    """Part of an ask's time reserved for its report and end, at most half a second. Fraction, (0, 1)."""
    batch_size: int = Field(default=16, ge=1, le=256)
    """Contexts per GenerateBatch call. Contexts, [1, 256]."""
    batches_in_flight: int = Field(default=2, ge=1, le=64)
    """Concurrent GenerateBatch calls of one ask. Calls, [1, 64]."""
    report_wait_s: float = Field(default=2.0, ge=0, le=60)
    """Longest wait for a run's report where an ask wants it. Seconds, [0, 60]."""

    upstream_calls: int = Field(default=1000, ge=1, le=1_000_000)
    """Most calls at a time to each other service; further ones wait, and tenants take turns. Keep it below
    the services' ``MAX_CONNECTION_STREAMS``. Calls, [1, 1000000]."""
    breaker_failures: int = Field(default=5, ge=1)
    """Unanswered calls in a row that open the circuit to a service. Calls, [1, inf)."""
    breaker_open_s: float = Field(default=2.0, gt=0, le=3_600)
    """How long the circuit stays open before a trial call. Seconds, (0, 3600]."""
    breaker_slow_s: float = Field(default=5.0, gt=0, le=3_600)
    """Shortest time without an answer that is a failure; above normal call times. Seconds, (0, 3600]."""
    hedge_retrieve_s: float = Field(default=0.0, ge=0, le=60)
    """Time after which a slow Retrieve is hedged by a second call; 0 for never. Seconds, [0, 60]."""
    hedge_rerank_s: float = Field(default=0.0, ge=0, le=60)
    """Time after which a slow Rerank is hedged by a second call; 0 for never. Seconds, [0, 60]."""
    hedge_share: float = Field(default=0.1, ge=0, le=1)
    """Most second calls per call. Fraction, [0, 1]."""

    outbox_capacity: int = Field(default=100_000, ge=1)
    """Most observations stored while the evaluator is away; beyond, new ones are dropped. [1, inf)."""
    outbox_max_bytes: int = Field(default=2**30, ge=2**20)
    """Largest size of the outbox's file. Bytes, [1048576, inf)."""
    outbox_tenant_share: float = Field(default=0.75, gt=0, le=1)
    """Largest part of the outbox that one tenant alone can fill; several share it. Fraction, (0, 1]."""
    outbox_attempts: int = Field(default=5, ge=1)
    """Deliveries at which the evaluator died or failed before an observation is set aside. [1, inf)."""
    outbox_flush: bool = False
    """Whether an ask waits until its observation has reached the disk."""
    outbox_drain_s: float = Field(default=2.0, ge=0, le=3_600)
    """How long a planned stop waits until the evaluator has the observations of the outbox; the next process
    on the file sends what stays. Seconds, [0, 3600]."""
    observation_log: str = Field(default="", repr=False, validation_alias="EVENMESH_OBSERVATION_LOG")
    """Redis or Valkey that takes observations in place of the evaluator, such as
    ``redis://:PASSWORD@redis:6379/0``; evaluators with the same setting store them as fast as they can."""
    observation_log_entries: int = Field(default=1_000_000, ge=1)
    """Most observations of a tenant that wait in the log; beyond, they stay in the outbox. [1, inf)."""
    observe_text: bool = True
    """Whether observations carry the text of questions and, where there are references, of passages."""
    compute_threads: int = Field(default=1, ge=1, le=256)
    """Threads for sampling and measuring that is too large for the event loop. Threads, [1, 256]."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.retrieve_share + self.rerank_share + self.closing_share >= 1:
            raise ValueError(
                "EVENMESH_ORCHESTRATOR_RETRIEVE_SHARE, _RERANK_SHARE and _CLOSING_SHARE must add up to"
                " less than 1"
            )
        return self

    @field_validator("conversations_url")
    @classmethod
    def _check_database(cls, value: str) -> str:
        if value:
            # SQLAlchemy takes its time and memory, so it is imported only where it is used.
            from evenmesh_kit.storage.sql_settings import known_database

            known_database(value)
        return value

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: dict[str, SourceDefinition]) -> dict[str, SourceDefinition]:
        SourceCatalogue(value)
        return value

    @model_validator(mode="after")
    def _check_ensembles(self) -> Self:
        self.ensemble_registry()
        return self

    def ensemble_registry(self) -> Mapping[str, Ensemble]:
        """Return the ensembles with their weights loaded."""
        return read_ensembles(self.ensembles, self.source_catalogue())

    def source_catalogue(self) -> SourceCatalogue:
        """Return the sources that expressions can name."""
        return SourceCatalogue(self.sources)

    def conversation_limits(self) -> Limits:
        """Return the limits of conversations."""
        return Limits(
            turns=self.conversation_turns,
            words=self.conversation_words,
            lifetime_s=self.conversation_lifetime_s,
            conversations=self.conversations,
            bytes=self.conversation_bytes,
            tenant_share=self.conversation_tenant_share,
        )

    def outbox_file(self) -> Path:
        """Return the file of the outbox."""
        return self.home / "orchestrator" / "outbox.db"
