"""One round of Algorithm 2 for an agent: learn from its feedback and promote what is not worse."""

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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_core.errors import InvalidInput
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.tasks import cancel
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT, Caller, Role
from evenmesh_kit.settings import SettingsError
from evenmesh_kit.storage import durable_files
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.trained_texts import (
    TrainedTexts,
    TrainingTexts,
    find_trained_texts,
    write_trained_texts,
)
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.leases import SqlLeases
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_reranker.feedback.training import State, Training, TrainingReport
from evenmesh_reranker.models.manifest import Lineage, ManifestError
from evenmesh_reranker.models.ports import VersionStore
from evenmesh_training.online.comparison import Comparison, enough_queries, fewest_queries
from evenmesh_training.online.ports import Passages, Promoter
from evenmesh_training.online.settings import OnlineSettings
from evenmesh_training.online.training_examples import (
    FeedbackHistory,
    PassageKey,
    QueryFeedback,
    RoundData,
    TrainingExample,
    divided,
    load_feedback,
    training_examples,
    with_candidates,
)

if TYPE_CHECKING:  # these import torch, which a trainer without work should not hold in memory
    from evenmesh_training.ium.gate import Gate
    from evenmesh_training.online.maximisation import Trained
    from evenmesh_training.online.served import ServedModel, ServedModels

UPTO: Final = "feedback-upto"
"""Metric of a version: sequence number of the last feedback that its training read."""

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
"""Failures of one round that leave the trainer able to train the next agent: something it needs is away or
damaged, or the model cannot be trained so (torch raises RuntimeError, also when memory runs out)."""

_REPORT_S: Final = 15.0
_RETRY_S: Final = 2.0
_SEARCHES: Final = 4
"""Searches at a time, so that asks of others go first."""
_log = logging.getLogger("evenmesh.trainer")


class RoundError(Exception):
    """Raised when a round does not finish; one line. The trainer begins it again later."""


@dataclass(eq=False)
class Rounds:
    """Trains agents, one at a time.

    A round that is killed at any point leaves only files that the next one resumes from: the log does not say
    that it was done, so the next one reads the same feedback, resumes from the checkpoint, and makes the same
    version.

    Args:
        settings: settings of the trainer.
        store: keeps the feedback.
        log: keeps the reports.
        leases: gives the right to train an agent.
        passages: knows the texts of passages.
        promoter: promotes versions.
        models: store that versions are written to.
        served: makes the finder of served models; called in a thread when the first round begins.
        work: folder of the files that rounds keep while they run.
        pool: the thread that computes.
        gate: makes the questions of no agent that a candidate must not lose on; None: there are none.
    """

    settings: OnlineSettings
    _: KW_ONLY
    store: SqlFeedbackStore
    log: SqlTrainingLog
    leases: SqlLeases
    passages: Passages
    promoter: Promoter
    models: VersionStore
    served: Callable[[], ServedModels]
    work: Path
    pool: ComputePool
    gate: Callable[[], Gate] | None = None
    _served: ServedModels | None = field(default=None, init=False)

    async def run(self, training: Training) -> TrainingReport:
        """Train one agent, whose lease the caller has; return the final report.

        Args:
            training: the agent's training in the log.

        Raises:
            RoundError: something is away, or the lease was lost.
            asyncio.CancelledError: the round was cancelled; its checkpoint is kept.
        """
        agent = training.report.agent
        if agent is None:
            raise ValueError("online training is for one agent")
        # Passages are read and versions promoted for the agent's tenant.
        callers.enter(Caller("trainer", agent.tenant, frozenset({Role.SERVICE})))
        round_ = _Round(training.report, agent, self.work / _digest(agent))
        try:
            async with self._reporting(round_):
                report = await self._train(round_)
        except _FAILURES as error:
            await self._report(replace(round_.report, state=State.FAILED, message=_line(error)))
            raise RoundError(_line(error)) from error
        finally:
            await self.pool.run(gc.collect)  # frees models, which are in reference cycles, before waiting
        await self._report(report)
        await asyncio.to_thread(round_.forget)
        _log.info("an agent was trained for", extra={"report": report.message})
        return report

    def forget_others(self, agents: Iterable[Agent]) -> None:
        """Remove the files of rounds of all but these agents: the others were deleted. Takes long."""
        known = set(map(_digest, agents))
        for folder in self.work.iterdir() if self.work.is_dir() else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    async def _train(self, round_: _Round) -> TrainingReport:
        settings, agent = self.settings, round_.agent
        since = round_.report.trained_upto
        # The report of a round that was killed or failed may say another state, which is over now.
        report = replace(round_.report, state=State.IDLE, progress=0.0)
        if self._served is None:
            self._served = await self.pool.run(self.served)
        served = await self._served.find(agent)
        if served.own is not None and (done := served.own.lineage.metrics.get(UPTO)) and done > since:
            # An earlier round was killed after it promoted and before it reported.
            message = f"{served.version} serves"
            return replace(report, trained_upto=int(done), candidate_version="", message=message)
        begun = await asyncio.to_thread(round_.begun, since, served.version)
        history = await load_feedback(self.store, agent, most_items=settings.most_items, upto=begun)
        await asyncio.to_thread(round_.begin, since, served.version, history.upto)
        texts = await self.passages.texts(history.passages)
        adapter = served.parameters.adapter
        train, choosing, held_out = divided(
            history.queries,
            learns=settings.learns,
            trained=served.own is not None and (adapter is None or bool(adapter.pairs)),
            since=since,
            share=settings.held_back,
            least=enough_queries(settings.margin),
        )
        examples = RoundData(
            training_examples(train, texts),
            await self._with_candidates(choosing, texts),
            await self._with_candidates(held_out, texts),
        )
        data = _Data(history, examples, len(texts))
        report = replace(report, trained_upto=history.upto)
        if not (examples.examples or examples.choosing):
            return replace(report, message=f"nothing to learn from: {data.summary}")
        made = await self._compute(round_, self._served, served, data)
        version, comparison, general = made.version, made.comparison, made.general
        if not version:
            message = f"no other fusion is better by more than a standard error: {data.summary}"
            return replace(report, candidate_version="", message=message)
        summary = f"{data.summary}; nDCG {comparison.served:.3f} → {comparison.candidate:.3f}{made.note}"
        if not comparison.promotes:
            why = _refusal(comparison, settings)
            return replace(report, candidate_version=version, message=f"{version} {why}: {summary}")
        if general is not None and general.worse:
            why = f"forgets: on questions of no agent nDCG {general.served:.3f} → {general.candidate:.3f}"
            message = f"{version} {why} (p = {general.p_worse:.3g}): {summary}"
            return replace(report, candidate_version=version, message=message)
        round_.check()
        round_.advance(1.0, f"asking the reranker to serve {version}")
        try:
            await self._promote(round_, version)
        except Unavailable as error:
            message = f"{version} may serve, but the reranker was away: {error.message}; {summary}"
            return replace(report, candidate_version=version, message=message)
        return replace(report, candidate_version="", message=f"{version} serves: {summary}")

    async def _with_candidates(
        self, judged: Sequence[QueryFeedback], texts: Mapping[PassageKey, Passage]
    ) -> list[TrainingExample]:
        """Return an example of each query that has passages left, with the candidates of an ask."""
        at_once = asyncio.Semaphore(_SEARCHES)

        async def searched(one: QueryFeedback) -> list[TrainingExample]:
            examples = training_examples([one], texts)
            if examples:
                async with at_once:
                    found = await self.passages.found(one.collection, one.query)
                examples = [with_candidates(example, found) for example in examples]
            return examples

        return [one for some in await asyncio.gather(*map(searched, judged)) for one in some]

    async def _promote(self, round_: _Round, version: str) -> None:
        ends = time.monotonic() + self.settings.promote_s
        # A process that was stopped for longer than its lease does not know yet that it is lost.
        if not await self.leases.take(round_.agent):
            raise Unavailable("LEASE_LOST", "another trainer took the agent over, or it was deleted")
        while True:
            try:
                await self.promoter.promote(version)
                return
            except MeshError as error:
                passing = isinstance(error, Unavailable) or error.code is grpc.StatusCode.DEADLINE_EXCEEDED
                if not passing or time.monotonic() > ends:
                    raise
            await asyncio.sleep(_RETRY_S)
            round_.check()

    async def _compute(self, round_: _Round, models: ServedModels, served: ServedModel, data: _Data) -> _Made:
        computing = asyncio.ensure_future(self.pool.run(self._make, round_, models, served, data))
        try:
            return await asyncio.shield(computing)
        except asyncio.CancelledError:
            # The thread cannot be left behind: it ends after its current step.
            round_.stop.set()
            with contextlib.suppress(Exception):
                await computing
            raise

    def _make(self, round_: _Round, models: ServedModels, served: ServedModel, data: _Data) -> _Made:
        """Train, compare and write a version, in a thread."""
        from evenmesh_training.online.candidates import Candidate
        from evenmesh_training.online.maximisation import maximise, options_of

        settings, adapter = self.settings, served.parameters.adapter
        if settings.learns == "fusion" and served.parameters.model is served.base:
            candidate = Candidate.alike(served.base, adapter)
        elif settings.learns != "fusion" and settings.parameters == "adapter":
            candidate = Candidate.adapted(
                served.base, adapter, layers=settings.layers, rank=settings.rank, seed=settings.seed
            )
        else:
            candidate = Candidate.full(models.copy(served), adapter, round_.agent)
        trained = maximise(
            candidate,
            served.parameters,
            round_.agent,
            data.round,
            options_of(settings),
            level=settings.level,
            margin=settings.margin,
            gate=None if self.gate is None else self.gate(),
            on_progress=round_.advance,
            checkpoint=round_.checkpoint,
            stop=round_.stop.is_set,
        )
        if trained.comparison is None:
            raise Unavailable("STOPPED", round_.lost or "the training was stopped; it resumes later")
        candidate = trained.candidate
        fusion = candidate.parameters.fusion(round_.agent)
        changed = fusion != served.parameters.fusion(round_.agent)
        if trained.learned is None and not changed:
            return _Made("", "", trained.comparison, None)
        lineage = Lineage(
            f"online-ium, {len(data.history.queries):,} queries",
            parent=served.version,
            agent=round_.agent,
            tenant=round_.agent.tenant,
            kind=candidate.kind,
            base=candidate.base,
            metrics=_metrics(data, trained, trained.comparison, fusion if data.round.choosing else None),
        )
        with self.models.write(lineage) as draft:
            draft.tokens = candidate.save(served.folder, draft.folder)
            write_trained_texts(_texts(candidate.base, served, data), draft.folder)
        note = f"; first stage {fusion.weight:g}, neighbors {fusion.neighbors:g}" if changed else ""
        return _Made(draft.version, note, trained.comparison, trained.general)

    @asynccontextmanager
    async def _reporting(self, round_: _Round) -> AsyncIterator[None]:
        """Extend the lease and report progress within the block."""
        every = min(_REPORT_S, self.settings.lease_s / 3)
        kept_until = time.monotonic() + self.settings.lease_s

        async def keep() -> None:
            nonlocal kept_until
            while True:
                try:
                    begun = time.monotonic()
                    if not await self.leases.take(round_.agent):
                        round_.lose("another trainer took the agent over, or it was deleted")
                        return
                    kept_until = begun + self.settings.lease_s
                    await self.log.report(
                        replace(
                            round_.report,
                            state=State.RUNNING,
                            progress=round_.progress,
                            message=round_.message,
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
            await cancel(keeping)

    async def _report(self, report: TrainingReport) -> None:
        """Write a report to the log, which may be away for as long as a lease."""
        ends = time.monotonic() + self.settings.lease_s
        while True:
            try:
                await self.log.report(report)
                return
            except Unavailable as error:
                if time.monotonic() > ends:
                    raise RoundError(f"the report cannot be written: {error.message}") from error
            await asyncio.sleep(_RETRY_S)


class _Round:
    """State of a round, shared by the event loop and the thread that computes."""

    def __init__(self, report: TrainingReport, agent: Agent, folder: Path) -> None:
        self.report = report
        self.agent = agent
        self.stop = threading.Event()
        self.lost = ""
        self.progress = 0.0
        self.message = "reading feedback"
        self.checkpoint = folder / "learning.pt"
        self._folder = folder

    def advance(self, progress: float, message: str) -> None:
        """Record which share of the computation is done, [0, 1], and what it does."""
        self.progress, self.message = progress, message

    def lose(self, why: str) -> None:
        """Record that the lease is lost, and stop computing."""
        self.lost = why
        self.stop.set()

    def check(self) -> None:
        """Check that the lease is still held.

        Raises:
            Unavailable: it is lost.
        """
        if self.lost:
            raise Unavailable("LEASE_LOST", self.lost)

    def begun(self, since: int, served: str) -> int | None:
        """Return up to where a killed round had read, if this round repeats it; None otherwise."""
        try:
            data: dict[str, Any] = json.loads((self._folder / "begun.json").read_bytes())
            return int(data["upto"]) if (data["since"], data["served"]) == (since, served) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, since: int, served: str, upto: int) -> None:
        """Write down what this round reads, for a round that has to resume it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = {"since": since, "served": served, "upto": upto}
        durable_files.replace(self._folder / "begun.json", json.dumps(data).encode())

    def forget(self) -> None:
        """Remove the files of this round."""
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Data:
    """Data of a round.

    Attributes:
        history: the agent's feedback.
        round: what is computed with.
        found: number of judged passages that still exist.
    """

    history: FeedbackHistory
    round: RoundData
    found: int

    @property
    def missing(self) -> int:
        """Number of judged passages without a text: gone ones, and those of which no collection is known."""
        return len(self.history.passages) - self.found

    @property
    def unplaced(self) -> int:
        """Number of judged passages whose feedback names no collection."""
        return sum(not collection for collection, _ in self.history.passages)

    @property
    def summary(self) -> str:
        """One line."""
        parts = [f"{len(self.history.queries):,} queries, {len(self.round.held_out):,} of them held back"]
        if self.unplaced:
            parts.append(f"feedback names no collection of {self.unplaced:,} passages")
        if gone := self.missing - self.unplaced:
            parts.append(f"{gone:,} passages are gone")
        if self.history.left_out:
            parts.append(f"{self.history.left_out:,} old items left out")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a round made.

    Attributes:
        version: the candidate's; empty if it would rank as what serves.
        note: another fusion than before, for the report; empty if it stays.
        comparison: on the agent's queries.
        general: on the questions of the gate; None without it.
    """

    version: str
    note: str
    comparison: Comparison
    general: Comparison | None


def _texts(base: str, served: ServedModel, data: _Data) -> TrainedTexts:
    """Return what a candidate was trained on; an adapter's are without those of the model that it changes.

    Args:
        base: version that an adapter changes; empty for a model.
        served: model that it started from.
        data: of the round.
    """
    before = None
    if not base or served.parameters.adapter is not None:
        with contextlib.suppress(FileError):  # no reason to lose a round: it counts as not known
            before = find_trained_texts(served.folder)
    learned = (*data.round.examples, *data.round.choosing)
    return (before or TrainedTexts((), (f"version {base or served.version}",))).followed_by(
        TrainingTexts.of(
            "online-ium",
            (one.query for one in learned),
            (passage.text for one in learned for passage in one.passages),
        )
    )


def _metrics(
    data: _Data, trained: Trained, comparison: Comparison, fusion: Fusion | None
) -> dict[str, float | None]:
    values: dict[str, float] = {
        UPTO: data.history.upto,
        "queries": len(data.history.queries),
        "items": data.history.items,
        "missing-passages": data.missing,
        "held-back-queries": comparison.queries,
        "ndcg": comparison.candidate,
        "ndcg-before": comparison.served,
        "p-worse": comparison.p_worse,
        "gain-low": comparison.low,
    }
    if trained.learned is not None:
        losses = trained.learned.losses
        tenth = max(1, len(losses) // 10)
        values |= {"loss-first": sum(losses[:tenth]) / tenth, "loss-last": sum(losses[-tenth:]) / tenth}
    if fusion is not None:
        values |= {"fusion-weight": fusion.weight, "fusion-neighbors": fusion.neighbors}
    if (general := trained.general) is not None:
        values |= {"gate-ndcg": general.candidate, "gate-ndcg-before": general.served}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _refusal(comparison: Comparison, settings: OnlineSettings) -> str:
    """Say why a candidate is not promoted."""
    if comparison.worse and comparison.decides:
        return f"is worse (p = {comparison.p_worse:.3g})"
    if not comparison.decides:
        return f"cannot be judged by fewer than {fewest_queries(settings.level)} queries held back"
    enough = enough_queries(settings.margin)
    if comparison.queries < enough:
        return (
            f"is not significantly better (its gain is at least {comparison.low:.3f}), and fewer than "
            f"{enough} queries held back, {comparison.queries}, cannot show that it loses less than "
            f"{settings.margin:g}"
        )
    return f"may lose {settings.margin:g} or more (its gain is at least {comparison.low:.3f})"


def _digest(agent: Agent) -> str:
    # The default tenant is left out, so that folders from before there were tenants keep their names.
    tenant = [] if agent.tenant == DEFAULT_TENANT else [agent.tenant]
    ids = json.dumps([agent.task_id, agent.model_id, *tenant])
    return hashlib.sha256(ids.encode()).hexdigest()[:32]


def _line(error: Exception) -> str:
    message = error.message if isinstance(error, MeshError) else str(error)
    return " ".join(message.split())[:500]
