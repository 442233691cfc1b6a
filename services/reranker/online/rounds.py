"""One round of Algorithm 2 for an agent: its feedback is learned from, and what comes of it may serve."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import logging
import math
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from meshkit.compute import ComputePool
from meshkit.errors import MeshError, Unavailable
from meshkit.models import ModelError
from meshkit.security import caller as callers
from meshkit.security.caller import Caller, Role
from meshkit.settings import SettingsError
from ragcore.errors import InvalidInput
from services.reranker.domain import DEFAULT_TENANT, Agent
from services.reranker.feedback.ports import FeedbackStore, TrainingLog
from services.reranker.feedback.training import State, Training, TrainingReport
from services.reranker.models import durable
from services.reranker.models.manifest import Lineage, ManifestError
from services.reranker.models.store import ModelStore
from services.reranker.online.comparison import Comparison, fewest_queries
from services.reranker.online.lessons import Heard, Lesson, hear, lessons, split
from services.reranker.online.ports import Leases, Passages, Promoter
from services.reranker.online.settings import OnlineSettings

if TYPE_CHECKING:  # torch, which a trainer without work should not hold in memory
    from services.reranker.online.maximisation import Trained
    from services.reranker.online.served import Served, Serving

UPTO: Final = "feedback-upto"
"""Metric of a version: sequence number of the last feedback that its training has seen."""

_FAILURES: Final = (
    MeshError,
    ModelError,
    ManifestError,
    SettingsError,
    InvalidInput,
    OSError,
    ValueError,
    ArithmeticError,
    RuntimeError,
)
"""What a round can fail of: what it needs is away or damaged, or the model cannot be trained so (torch raises
RuntimeError, also for want of memory). The next agent's round is not the worse for it."""

_REPORT_S: Final = 15.0
_RETRY_S: Final = 2.0
_log = logging.getLogger("ragmesh.trainer")


class RoundError(Exception):
    """A round that did not come to its end; one line. It begins again later."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What a round's compute made: a version, and how it compares."""

    version: str
    comparison: Comparison


class Rounds:
    """Trains agents, one at a time.

    A round that is killed, at whatever point, leaves nothing behind but files that the next one goes on from:
    the log does not say that it was done, so it begins again, reads the same feedback, goes on from its
    checkpoint, and makes the same version.

    Args:
        settings: how.
        store: the feedback.
        log: is told what happens.
        leases: the right to train an agent.
        passages: their texts.
        promoter: makes versions serve.
        models: where versions are written to.
        serving: makes what finds what serves; called in a thread when the first round begins.
        work: folder of what rounds keep while they run.
        pool: the thread that computes.
    """

    def __init__(
        self,
        settings: OnlineSettings,
        *,
        store: FeedbackStore,
        log: TrainingLog,
        leases: Leases,
        passages: Passages,
        promoter: Promoter,
        models: ModelStore,
        serving: Callable[[], Serving],
        work: Path,
        pool: ComputePool,
    ) -> None:
        self._settings = settings
        self._store = store
        self._log = log
        self._leases = leases
        self._passages = passages
        self._promoter = promoter
        self._models = models
        self._make_serving = serving
        self._serving: Serving | None = None
        self._work = work
        self._pool = pool

    async def run(self, training: Training) -> TrainingReport:
        """Trains one agent, whose lease the caller has; what is told of it in the end.

        Args:
            training: what the log says of the agent.

        Raises:
            RoundError: it came to no end: something is away, or the lease was lost.
            asyncio.CancelledError: it was cancelled; its checkpoint is kept.
        """
        agent = training.report.agent
        if agent is None:
            raise ValueError("online training is an agent's own")
        # Passages are read and versions promoted for the tenant whose feedback it is.
        callers.enter(Caller("trainer", agent.tenant, frozenset({Role.SERVICE})))
        round_ = _Round(training.report, agent, self._work / _digest(agent))
        try:
            async with self._heard_of(round_):
                report = await self._train(round_)
        except _FAILURES as error:
            await self._tell(replace(round_.report, state=State.FAILED, message=_line(error)))
            raise RoundError(_line(error)) from error
        await self._tell(report)
        await asyncio.to_thread(round_.forget)
        _log.info("an agent was trained for", extra={"told": report.message})
        return report

    async def _train(self, round_: _Round) -> TrainingReport:
        settings, agent = self._settings, round_.agent
        since = round_.report.trained_upto
        # A round that was killed or failed left another state behind, which is over now.
        report = replace(round_.report, state=State.IDLE, progress=0.0)
        served = await self._pool.run(self._find, agent)
        if served.own is not None and (done := served.own.lineage.metrics.get(UPTO)) and done > since:
            # Promoted, and killed before it was told.
            return replace(
                report,
                trained_upto=int(done),
                candidate_version="",
                message=f"{served.version} serves",
            )
        begun = await asyncio.to_thread(round_.begun, since, served.version)
        heard = await hear(self._store, agent, most_items=settings.most_items, upto=begun)
        await asyncio.to_thread(round_.begin, since, served.version, heard.upto)
        texts = await self._passages.texts(heard.passages)
        train, held = split(
            heard.queries, since=since, share=settings.held_back, least=fewest_queries(settings.level)
        )
        material = _Material(heard, lessons(train, texts), lessons(held, texts), len(texts))
        if not material.lessons:
            return replace(
                report,
                trained_upto=heard.upto,
                message=f"nothing to learn from: {material.told}",
            )
        made = await self._compute(round_, served, material)
        comparison = made.comparison
        told = f"{material.told}; nDCG {comparison.served:.3f} → {comparison.candidate:.3f}"
        report = replace(report, trained_upto=heard.upto)
        if not comparison.promotes:
            why = (
                f"is worse (p = {comparison.p_worse:.3g})"
                if comparison.decides
                else f"cannot be judged by fewer than {fewest_queries(settings.level)} queries held back"
            )
            return replace(report, candidate_version=made.version, message=f"{made.version} {why}: {told}")
        round_.check()
        try:
            await self._promote(round_, made.version)
        except Unavailable as error:
            why = f"{made.version} is not worse, and nobody was there to promote it: {error.message}; {told}"
            return replace(report, candidate_version=made.version, message=why)
        return replace(report, candidate_version="", message=f"{made.version} serves: {told}")

    async def _promote(self, round_: _Round, version: str) -> None:
        ends = time.monotonic() + self._settings.promote_s
        while True:
            try:
                await self._promoter.promote(version)
                return
            except Unavailable:
                if time.monotonic() > ends:
                    raise
            except MeshError as error:
                if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED or time.monotonic() > ends:
                    raise
            await asyncio.sleep(_RETRY_S)
            round_.check()

    def _find(self, agent: Agent) -> Served:
        if self._serving is None:
            self._serving = self._make_serving()
        return self._serving.find(agent)

    async def _compute(self, round_: _Round, served: Served, material: _Material) -> _Made:
        computing = asyncio.ensure_future(self._pool.run(self._make, round_, served, material))
        try:
            return await asyncio.shield(computing)
        except asyncio.CancelledError:
            round_.stop.set()  # after this step; the thread cannot be left behind
            with contextlib.suppress(Exception):
                await computing
            raise

    def _make(self, round_: _Round, served: Served, material: _Material) -> _Made:
        """Loads, trains, compares and writes; in a thread."""
        from services.reranker.online.candidates import Candidate, Parameters
        from services.reranker.online.maximisation import maximise, options_of

        settings, serving = self._settings, self._serving
        assert serving is not None  # noqa: S101 - what serves was found
        try:
            base = serving.base(served)
            model, adapter = serving.own(served, base)
            source = served.folder
            if settings.parameters == "adapter":
                candidate = Candidate.changes(
                    base, adapter, layers=settings.layers, rank=settings.rank, seed=settings.seed
                )
            else:
                source, copy = serving.copy(served)
                candidate = Candidate.whole(copy, adapter, round_.agent)
            trained = maximise(
                candidate,
                Parameters(model, adapter),
                round_.agent,
                material.lessons,
                material.held,
                options_of(settings),
                level=settings.level,
                watcher=round_.watch,
                checkpoint=round_.checkpoint,
                stop=round_.stop.is_set,
            )
            if trained.comparison is None:
                raise Unavailable("STOPPED", round_.lost or "the training was stopped; it goes on later")
            lineage = Lineage(
                f"online-ium, {len(material.heard.queries):,} queries",
                parent=served.version,
                agent=round_.agent,
                tenant=round_.agent.tenant,
                kind=candidate.kind,
                base=candidate.base,
                metrics=_metrics(material, trained, trained.comparison),
            )
            with self._models.write(lineage) as draft:
                draft.tokens = candidate.save(source, draft.folder)
            return _Made(draft.version, trained.comparison)
        finally:
            gc.collect()  # models hold themselves in circles; a trainer that waits needs no memory

    @asynccontextmanager
    async def _heard_of(self, round_: _Round) -> AsyncIterator[None]:
        """Keeps the lease and tells of progress for as long as it is open."""
        every = min(_REPORT_S, self._settings.lease_s / 3)
        kept_until = time.monotonic() + self._settings.lease_s

        async def keep() -> None:
            nonlocal kept_until
            while True:
                try:
                    begun = time.monotonic()
                    if not await self._leases.take(round_.agent):
                        round_.lose("another trainer took the agent over")
                        return
                    kept_until = begun + self._settings.lease_s
                    await self._log.report(
                        replace(
                            round_.report, state=State.RUNNING, progress=round_.progress, message=round_.told
                        )
                    )
                except Unavailable as error:
                    if time.monotonic() > kept_until:
                        round_.lose(f"the lease ended while the database was away: {error.message}")
                        return
                await asyncio.sleep(every)

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _tell(self, report: TrainingReport) -> None:
        """Tells the log, which may be away for a while."""
        ends = time.monotonic() + self._settings.lease_s
        while True:
            try:
                await self._log.report(report)
                return
            except Unavailable as error:
                if time.monotonic() > ends:
                    raise RoundError(f"nothing can be told: {error.message}") from error
            await asyncio.sleep(_RETRY_S)


class _Round:
    """A round's state, shared by the loop and the thread that computes."""

    def __init__(self, report: TrainingReport, agent: Agent, folder: Path) -> None:
        self.report = report
        self.agent = agent
        self.stop = threading.Event()
        self.lost = ""
        self.progress = 0.0
        self.told = "reading feedback"
        self._folder = folder

    @property
    def checkpoint(self) -> Path:
        """File of the state of learning."""
        return self._folder / "learning.pt"

    def watch(self, step: int, steps: int, loss: float) -> None:
        """Takes note of a step."""
        self.progress = step / steps
        self.told = f"step {step:,} of {steps:,}, loss {loss:.4f}"

    def lose(self, why: str) -> None:
        """The lease is lost: what is computed is for nothing."""
        self.lost = why
        self.stop.set()

    def check(self) -> None:
        """That the lease is still held.

        Raises:
            Unavailable: it is not.
        """
        if self.lost:
            raise Unavailable("LEASE_LOST", self.lost)

    def begun(self, since: int, served: str) -> int | None:
        """Up to where a round that was killed had read, if this one is the same; None if there is none."""
        try:
            told: dict[str, Any] = json.loads((self._folder / "begun.json").read_bytes())
            return int(told["upto"]) if (told["since"], told["served"]) == (since, served) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, since: int, served: str, upto: int) -> None:
        """Takes note of what is read, for a round that has to go on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        told = {"since": since, "served": served, "upto": upto}
        durable.replace(self._folder / "begun.json", json.dumps(told).encode())

    def forget(self) -> None:
        """Removes what was kept to go on from."""
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Material:
    """What a round learns from, and a line about it."""

    heard: Heard
    lessons: list[Lesson]
    held: list[Lesson]
    found: int

    @property
    def missing(self) -> int:
        """Passages that were judged and are not there any more."""
        return len(self.heard.passages) - self.found

    @property
    def told(self) -> str:
        """One line."""
        parts = [f"{len(self.heard.queries):,} queries, {len(self.held):,} of them held back"]
        if self.missing:
            parts.append(f"{self.missing:,} passages are gone")
        if self.heard.left_out:
            parts.append(f"{self.heard.left_out:,} old items left out")
        return ", ".join(parts)


def _metrics(material: _Material, trained: Trained, comparison: Comparison) -> dict[str, float | None]:
    losses = trained.learned.losses
    tenth = max(1, len(losses) // 10)
    values: dict[str, float] = {
        UPTO: material.heard.upto,
        "queries": len(material.heard.queries),
        "items": material.heard.items,
        "missing-passages": material.missing,
        "held-back-queries": comparison.queries,
        "ndcg": comparison.candidate,
        "ndcg-before": comparison.served,
        "p-worse": comparison.p_worse,
        "loss-first": sum(losses[:tenth]) / tenth,
        "loss-last": sum(losses[-tenth:]) / tenth,
    }
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _digest(agent: Agent) -> str:
    # The tenant that there was before there were others has the folders it had then.
    tenant = [] if agent.tenant == DEFAULT_TENANT else [agent.tenant]
    ids = json.dumps([agent.task_id, agent.model_id, *tenant])
    return hashlib.sha256(ids.encode()).hexdigest()[:32]


def _line(error: Exception) -> str:
    said = error.message if isinstance(error, MeshError) else str(error)
    return " ".join(said.split())[:500]
