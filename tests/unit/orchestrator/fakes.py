"""Scripted upstreams in this process, behind the ports of the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenmesh.common.v1 import common_pb2
from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.evaluator.v1.evaluator_service_pb2 import RunReport, VoteRequest
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1.generator_service_pb2 import Answer, GenerateRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_core.exposure_balance import ExposureBalance
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security import caller as callers
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.budgets import PipelineConfig
from evenmesh_orchestrator.asks.pipeline import Pipeline
from evenmesh_orchestrator.asks.request import Defaults, read_ask, read_ensemble
from evenmesh_orchestrator.audits.codec import read_audit
from evenmesh_orchestrator.domain import (
    Ask,
    Audit,
    AuditEvent,
    EnsembleAsk,
    Event,
    FirstStage,
    Observation,
    Pool,
    Relevance,
    Sampling,
    Stage,
)
from evenmesh_orchestrator.ensembles.votes import LocalVoteSession
from evenmesh_orchestrator.expressions.sources import SourceCatalogue, SourceDefinition
from evenmesh_orchestrator.ports import Receipt, VoteSession, VoteState


def passage(name: str, text: str = "", *, provider: str = "", title: str = "") -> common_pb2.Passage:
    """A passage as it would arrive."""
    attributes = {"provider": provider} if provider else {}
    return common_pb2.Passage(id=name, title=title, text=text or f"About {name}.", attributes=attributes)


def answer(text: str) -> generator_pb.Answer:
    """An answer as it would arrive."""
    return generator_pb.Answer(text=text, log_probability=-0.5, model="pointer", model_version="1")


def ask(**changes: Any) -> Ask:
    """An ask as it would be read: any field of the request may be given."""
    request = pb.AskRequest(question="Which river?", reranker="none")
    request.MergeFrom(pb.AskRequest(**changes))
    return read_ask(request, Defaults("demo", "rankrag"))


SOURCES = SourceCatalogue(
    {
        "Wiki": SourceDefinition(collection="wiki"),
        "WikiDense": SourceDefinition(collection="wiki", retriever="dense"),
        "News": SourceDefinition(collection="news", depth=4),
        "SE": SourceDefinition(web="searx"),
        "HB": SourceDefinition(all=("Wiki@2", "SE", "PK")),
    }
)
"""Sources of the tests of expressions."""
DEFAULTS = Defaults("demo", "rankrag", SOURCES)
"""Defaults of requests, with these sources."""


def ask_expression(expression: str, **changes: Any) -> Ask:
    """An ask with an expression over :data:`SOURCES`."""
    request = pb.AskRequest(question="Which river?", expression=expression, **changes)
    return read_ask(request, DEFAULTS)


def audit(*, alphas: Sequence[float] = (1.0, 4.0), rankings: int = 20, **changes: Any) -> Audit:
    """An audit as it would be read: any field of its ask may be given, and of it those that no ask has."""
    own = {name: changes.pop(name) for name in ("num_oracle", "until_width", "level") if name in changes}
    asked = pb.AskRequest(question="Which river?", run_id="run", query_id="q1")
    if "expression" not in changes:
        asked.reranker = "none"
        asked.k = 2
    asked.sampling.num_rankings = rankings
    asked.labels.has_useful = True
    asked.labels.useful_passage_ids.extend(["c", "e"])
    asked.labels.references.append("a b")
    asked.MergeFrom(pb.AskRequest(**changes))
    return read_audit(pb.AuditRequest(ask=asked, alphas=alphas, **own), DEFAULTS)


def ensemble(*expressions: str, **changes: Any) -> EnsembleAsk:
    """An ask of an ensemble over :data:`SOURCES`, as it would be read."""
    request = pb.AskRequest(question="Which river?", run_id="run", query_id="q1", **changes)
    request.ensemble.expressions.extend(expressions)
    return read_ensemble(request, DEFAULTS)


@dataclass
class FakeRetriever:
    """Finds the passages it was given, best first; sampled rankings are what the test says."""

    passages: list[common_pb2.Passage] = field(default_factory=lambda: [passage(name) for name in "abcdef"])
    rankings: Sequence[Sequence[int]] | None = None
    policy: common_pb2.Policy | None = None
    error: Exception | None = None
    delay_s: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    places: dict[str, list[common_pb2.Passage]] = field(default_factory=dict)
    """What some collections and web sources have, instead of ``passages``."""
    errors: dict[str, Exception] = field(default_factory=dict)
    """What goes wrong with some of them."""
    delays_s: dict[str, float] = field(default_factory=dict)
    """How long some of them take."""

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        place = ask.web or ask.collection
        self.calls.append(
            {
                "k": k,
                "sampling": sampling,
                "timeout_s": timeout_s,
                "place": place,
                "retriever": ask.retriever,
                "filter": ask.filter,
            }
        )
        try:
            await asyncio.sleep(self.delays_s.get(place, self.delay_s))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if (error := self.errors.get(place, self.error)) is not None:
            raise error
        if ask.id_prefix:
            found = [passage(ask.id_prefix + one.id, one.text) for one in self.places[place][:k]]
            n = len(found)
            scores = np.arange(n, 0, -1, dtype=np.float64)
            return Pool(found, scores, np.arange(n)[None, :], None, ask.retriever or "bm25", f"{place}-v1")
        n = len(self.passages)
        rows = self.rankings if self.rankings is not None else [list(range(min(k, n)))]
        matrix = np.array(rows, dtype=np.int64).reshape(len(rows), -1)
        chances = None if sampling is None else np.full(len(rows), -1.0)
        scores = np.arange(n, 0, -1, dtype=np.float64)
        return Pool(self.passages, scores, matrix, chances, "bm25", "v1", self.policy)


@dataclass
class FakeReranker:
    """Scores passages by name."""

    scores: dict[str, float] = field(default_factory=dict)
    fusion: float = 0.0
    error: Exception | None = None
    delay_s: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0

    async def rerank(
        self, ask: Ask, passages: Sequence[Passage], *, timeout_s: float, first: FirstStage | None = None
    ) -> Relevance:
        self.calls.append(
            {
                "question": ask.search_text,
                "ids": [one.id for one in passages],
                "agent": ask.agent,
                "reranker": ask.reranker,
                "timeout_s": timeout_s,
                "first": first,
            }
        )
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        scores = np.array([self.scores.get(one.id, 0.0) for one in passages])
        return Relevance(scores, ask.reranker, "r1", self.fusion)


@dataclass
class FakeGenerator:
    """Answers with the ids of its passages, word by word when streamed."""

    says: Callable[[GenerateRequest], str] = lambda prompt: " ".join(one.id for one in prompt.passages)
    stream_error: Exception | None = None
    words_before_error: int = 0
    batch_error: Exception | None = None
    fails: Callable[[GenerateRequest], MeshError | None] = lambda _: None
    delay_s: float = 0.0
    batch_delay_s: float = 0.0
    knows: str = "What the model knows."
    knowledge_error: Exception | None = None
    streamed: list[GenerateRequest] = field(default_factory=list)
    batches: list[list[GenerateRequest]] = field(default_factory=list)
    batch_timeouts: list[float] = field(default_factory=list)
    closed: int = 0
    batches_at_once: int = 0
    most_batches_at_once: int = 0

    async def stream(
        self, prompt: GenerateRequest, *, timeout_s: float
    ) -> AsyncGenerator[str | Answer, None]:
        self.streamed.append(prompt)
        text = self.says(prompt)
        words = text.split(" ")
        try:
            for i, word in enumerate(words):
                if self.stream_error is not None and i == self.words_before_error:
                    raise self.stream_error
                await asyncio.sleep(self.delay_s)
                yield word if i == 0 else f" {word}"
            yield answer(text)
        finally:
            self.closed += 1

    async def batch(
        self, prompts: Sequence[GenerateRequest], *, timeout_s: float
    ) -> Sequence[Answer | MeshError]:
        self.batches.append(list(prompts))
        self.batch_timeouts.append(timeout_s)
        self.batches_at_once += 1
        self.most_batches_at_once = max(self.most_batches_at_once, self.batches_at_once)
        try:
            await asyncio.sleep(self.batch_delay_s)
        finally:
            self.batches_at_once -= 1
        if self.batch_error is not None:
            raise self.batch_error
        return [self.fails(prompt) or answer(self.says(prompt)) for prompt in prompts]

    async def knowledge(self, ask: Ask, *, max_passages: int, timeout_s: float) -> Pool:
        if self.knowledge_error is not None:
            raise self.knowledge_error
        return codec.knowledge(answer(self.knows), max_passages=max_passages)


@dataclass
class FakeObserver:
    """Keeps observations in a list."""

    posted: list[Observation] = field(default_factory=list)
    waits: str | None = None
    error: Exception | None = None
    delay_s: float = 0.0
    report: RunReport | Exception | None = None

    async def submit(self, observation: Observation) -> Receipt:
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        self.posted.append(observation)
        future: asyncio.Future[RunReport] | None = None
        if observation.ask.want_report:
            future = asyncio.get_running_loop().create_future()
            if isinstance(self.report, Exception):
                future.set_exception(self.report)
            elif self.report is not None:
                future.set_result(self.report)
        return Receipt(self.waits, future)


@dataclass
class FakeVotes:
    """Lets answers vote by token F1, as the real one does by default; hangs or fails on demand."""

    error: MeshError | None = None
    fails_after: int = 0
    delay_s: float = 0.0
    added: list[tuple[int, str | None]] = field(default_factory=list)
    opened: list[VoteRequest] = field(default_factory=list)
    closed: int = 0

    def open_vote(self, vote: VoteRequest, *, timeout_s: float) -> VoteSession:
        self.opened.append(vote)
        return _FakeVoteSession(self, LocalVoteSession(vote))


@dataclass
class _FakeVoteSession:
    votes: FakeVotes
    local: LocalVoteSession

    async def add(self, member: int, answer: str | None) -> VoteState:
        await asyncio.sleep(self.votes.delay_s)
        if self.votes.error is not None and len(self.votes.added) >= self.votes.fails_after:
            raise self.votes.error
        self.votes.added.append((member, answer))
        return await self.local.add(member, answer)

    def close(self) -> None:
        self.votes.closed += 1


@dataclass
class FakeBalances:
    """Says what providers are owed, or fails."""

    known: ExposureBalance = field(default_factory=ExposureBalance)
    error: MeshError | None = None
    asked: list[tuple[str, str, float]] = field(default_factory=list)
    """Tenant, collection and half-life of each call."""

    async def balance(self, collection: str, half_life_days: float, *, timeout_s: float) -> ExposureBalance:
        """Return what is known."""
        self.asked.append((callers.current().tenant, collection, half_life_days))
        if self.error is not None:
            raise self.error
        return self.known


@dataclass
class Mesh:
    """A pipeline with its upstreams."""

    retriever: FakeRetriever
    reranker: FakeReranker
    generator: FakeGenerator
    observer: FakeObserver
    pool: TenantPool
    votes: FakeVotes = field(default_factory=FakeVotes)
    balances: FakeBalances | None = None
    config: PipelineConfig = field(
        default_factory=lambda: PipelineConfig(
            shares={Stage.RETRIEVE: 0.25, Stage.RERANK: 0.35},
            closing_share=0.05,
            batch_size=2,
            batches_in_flight=2,
            report_wait_s=0.2,
        )
    )

    def pipeline(self) -> Pipeline:
        """The pipeline as it is set now."""
        return Pipeline(
            retriever=self.retriever,
            reranker=self.reranker,
            generator=self.generator,
            observer=self.observer,
            config=self.config,
            pool=self.pool,
            votes=self.votes,
            balances=self.balances,
        )

    async def ensemble(self, ensemble: EnsembleAsk, *, seconds: float = 60) -> list[Event]:
        """All events of an ensemble."""
        return [event async for event in self.pipeline().ensemble(ensemble, Deadline.after(seconds))]

    async def audit(self, audit: Audit, *, seconds: float = 60) -> list[AuditEvent]:
        """All events of an audit."""
        return [event async for event in self.pipeline().audit(audit, Deadline.after(seconds))]

    async def run(self, ask: Ask, *, seconds: float = 60) -> list[Event]:
        """All events of an ask."""
        return [event async for event in self.pipeline().ask(ask, Deadline.after(seconds))]
