"""Run steps one after the other and journal each, so that a stopped run resumes."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from evenmesh_lab.files import FileError, Journal
from evenmesh_studies.load.analysis.histograms import Histogram
from evenmesh_studies.load.analysis.knee import is_overloaded
from evenmesh_studies.load.calls.clients import Client
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.plan import LoadPlan, closed_step, open_step, ramp_rates, sweep_step, trace_step
from evenmesh_studies.load.resource_monitor import ResourceMonitor
from evenmesh_studies.load.step import Distribution, Step, StepResult, as_record, from_record

FILE: Final = "steps.jsonl"
"""File of the steps, one line each with every call."""


class StepProgress(Protocol):
    """Follows a run."""

    def begins(self, step: Step, place: int, count: int) -> None:
        """Handle the begin of a step, the ``place``-th of about ``count``, counted from 0."""
        ...

    def ended(self, measured: StepResult) -> None:
        """Handle the end of a step."""
        ...


@dataclass(slots=True)
class Session:
    """A run in progress.

    Attributes:
        plan: of the run.
        client: makes the calls.
        monitor: measures processor time.
        items: questions.
        journal: of the run, open.
        stop: ends the run.
        progress: follows the run.
        first: number of the first call; numbers are unique.
        steps: measured so far, in order; the last may have been interrupted.
        interrupted: whether it was stopped early, in a step or between two.
    """

    plan: LoadPlan
    client: Client
    monitor: ResourceMonitor
    items: Sequence[Item]
    journal: Journal
    stop: asyncio.Event
    progress: StepProgress
    first: int = 0
    steps: list[StepResult] = field(default_factory=list)
    interrupted: bool = field(default=False, init=False)
    _stored: Mapping[str, StepResult] = field(default_factory=dict)

    async def run(self) -> None:
        """Run all of the plan, or until it is stopped.

        Raises:
            FileError: the stored steps cannot be read.
        """
        self._stored = stored_steps(self.journal)
        match self.plan.way:
            case "load":
                await self._load()
            case "ramp":
                await self._ramp()
            case "sweep":
                await self._sweep()

    async def _load(self) -> None:
        plan, idle_s = self.plan, await self._warm_up()
        cores = os.cpu_count() or 1
        steps = [closed_step(plan, callers, idle_s, cores) for callers in plan.callers]
        steps += [open_step(plan, rate) for rate in sorted(plan.rates)]
        if plan.arrivals:
            steps.append(trace_step(plan))
        for place, step in enumerate(steps):
            if await self._measure(step, place, len(steps)) is None:
                return

    async def _ramp(self) -> None:
        plan, idle_s = self.plan, await self._warm_up()
        cores = os.cpu_count() or 1
        callers = sorted(plan.callers)
        count = len(callers) + len(plan.rates or ramp_rates(plan, 1.0))
        closed = []
        for place, number in enumerate(callers):
            measured = await self._measure(closed_step(plan, number, idle_s, cores), place, count)
            if measured is None:
                return
            closed.append(measured)
        saturation = max(one.completed_per_s for one in closed)
        alone = closed[0].latencies_ms()
        if not saturation > 0 or not alone.size:
            return
        beyond = 0
        # Named by place, so that a resumed run finds its steps even if the saturation differs.
        for place, rate in enumerate(ramp_rates(plan, saturation)):
            step = open_step(plan, rate, f"open-{place + 1}")
            measured = await self._measure(step, len(callers) + place, count)
            if measured is None:
                return
            beyond += is_overloaded(measured, float(alone.mean()))
            if beyond == 2:
                return

    async def _sweep(self) -> None:
        plan, idle_s = self.plan, await self._warm_up()
        cells = list(plan.cells())
        for place, values in enumerate(cells):
            step = sweep_step(plan, values, idle_s, os.cpu_count() or 1)
            if await self._measure(step, place, len(cells)) is None:
                return

    async def _warm_up(self) -> float:
        """Make calls that do not count; return their median latency in seconds, 0 if all failed."""
        plan = self.plan
        if not plan.warm_up or self.stop.is_set():
            return 0.0
        step = Step("warm-up", "closed", plan.longest_s, plan.settings, callers=1, most=plan.warm_up)
        driven = await self.client.drive(step, self.items, self._numbers(), self.stop)
        taken = [call.latency_ms / 1e3 for call in driven.calls if call.ok]
        return Distribution.of(taken).p50 if taken else 0.0

    async def _measure(self, step: Step, place: int, count: int) -> StepResult | None:
        """Measure a step, or return the stored one; return None once the run is stopped."""
        if (known := self._stored.get(step.name)) is not None:
            self.steps.append(known)
            return known
        if self.stop.is_set():
            self.interrupted = True
            return None
        self.progress.begins(step, place, count)
        self.monitor.begin(time.monotonic())
        driven = await self.client.drive(step, self.items, self._numbers(), self.stop)
        usage = self.monitor.end(time.monotonic())
        gaps = Histogram()
        for call in driven.calls:
            gaps.add(call.outcome.gaps_ms)
        measured = StepResult(
            step,
            driven.calls,
            gaps,
            Distribution.of(driven.lags_ms),
            driven.elapsed_s,
            driven.cpu_s,
            self.client.processes,
            usage,
            driven.interrupted,
        )
        if driven.interrupted:
            # An interrupted step is reported but not journalled: a resumed run measures it again.
            if measured.calls:
                self.steps.append(measured)
            self.interrupted = True
            return None
        self.journal.add(step.name, FILE, [json.dumps(as_record(measured), allow_nan=False)])
        self.steps.append(measured)
        self.progress.ended(measured)
        return measured

    def _numbers(self) -> int:
        """Return the number of the next step's first call."""
        first = self.first
        self.first += 1_000_000
        return first


def stored_steps(journal: Journal) -> Mapping[str, StepResult]:
    """Return the steps of a journal by name.

    Raises:
        FileError: the steps file cannot be read.
    """
    return {one.step.name: one for one in read_steps(journal.path.with_name(FILE), len(journal.done))}


def read_steps(path: Path, most: int | None = None) -> list[StepResult]:
    """Read the steps of a run.

    Args:
        path: the file.
        most: lines to read; None for all.

    Raises:
        FileError: a line is not a step.
        OSError: it cannot be read.
    """

    if most == 0:
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[:most], start=1):
        try:
            found.append(from_record(json.loads(line)))
        except (KeyError, TypeError, ValueError) as exc:
            raise FileError(path, number, f"is not a step of a load test: {exc}") from exc
    return found
