"""Steps one after the other, each written as it ends: a run that was stopped goes on where it was."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from raglab.files import FileError, Journal
from ragmesh.bench.clients import Client
from ragmesh.bench.histograms import Histogram
from ragmesh.bench.knee import too_much
from ragmesh.bench.material import Item
from ragmesh.bench.plan import Plan, closed_step, open_step, ramp_rates, sweep_step, trace_step
from ragmesh.bench.step import Measured, Spread, Step, as_record, from_record
from ragmesh.bench.witness import Witness

FILE: Final = "steps.jsonl"
"""Beside the journal: one line for each step, with every call."""


class Watcher(Protocol):
    """Is told how a run goes."""

    def begins(self, step: Step, place: int, count: int) -> None:
        """A step begins, the ``place``-th of about ``count``, counted from 0."""
        ...

    def ended(self, measured: Measured) -> None:
        """It has ended."""
        ...


@dataclass(slots=True)
class Session:
    """A run under way.

    Attributes:
        plan: what it does.
        client: makes the calls.
        witness: watches who computes.
        items: what calls are made with.
        journal: what has been written; open.
        stop: ends the run.
        watcher: is told how it goes.
        first: number of the first call; each has one of its own.
        steps: what was measured, in order; the last may have been interrupted.
    """

    plan: Plan
    client: Client
    witness: Witness
    items: Sequence[Item]
    journal: Journal
    stop: asyncio.Event
    watcher: Watcher
    first: int = 0
    steps: list[Measured] = field(default_factory=list)
    _stored: Mapping[str, Measured] = field(default_factory=dict)

    async def run(self) -> None:
        """Runs all of the plan, or until it is stopped.

        Raises:
            FileError: what was written before cannot be read.
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
        # Names by place: a resumed run finds its steps whatever saturation it finds.
        for place, rate in enumerate(ramp_rates(plan, saturation)):
            step = open_step(plan, rate, f"open-{place + 1}")
            measured = await self._measure(step, len(callers) + place, count)
            if measured is None:
                return
            beyond += too_much(measured, float(alone.mean()))
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
        """Calls that are not counted; the median time of one, alone, in seconds, 0 where none ended well."""
        plan = self.plan
        if not plan.warm_up or self.stop.is_set():
            return 0.0
        step = Step("warm-up", "closed", plan.longest_s, plan.settings, callers=1, most=plan.warm_up)
        driven = await self.client.drive(step, self.items, self._numbers(), self.stop)
        taken = [call.latency_ms / 1e3 for call in driven.calls if call.ok]
        return Spread.of(taken).p50 if taken else 0.0

    async def _measure(self, step: Step, place: int, count: int) -> Measured | None:
        """Measures a step, or reads what was measured before; None once the run is to end."""
        if (known := self._stored.get(step.name)) is not None:
            self.steps.append(known)
            return known
        if self.stop.is_set():
            return None
        self.watcher.begins(step, place, count)
        self.witness.begin(time.monotonic())
        driven = await self.client.drive(step, self.items, self._numbers(), self.stop)
        witnessed = self.witness.end(time.monotonic())
        gaps = Histogram()
        for call in driven.calls:
            gaps.add(call.outcome.gaps_ms)
        measured = Measured(
            step,
            driven.calls,
            gaps,
            Spread.of(driven.lags_ms),
            driven.elapsed_s,
            driven.cpu_s,
            self.client.processes,
            witnessed,
            driven.interrupted,
        )
        if driven.interrupted:
            # What was measured is reported; a run that goes on measures it again.
            if measured.calls:
                self.steps.append(measured)
            return None
        self.journal.add(step.name, FILE, [json.dumps(as_record(measured), allow_nan=False)])
        self.steps.append(measured)
        self.watcher.ended(measured)
        return measured

    def _numbers(self) -> int:
        """Where the next calls are numbered from."""
        first = self.first
        self.first += 1_000_000
        return first


def stored_steps(journal: Journal) -> Mapping[str, Measured]:
    """The steps that a journal says are there, by name.

    Raises:
        FileError: the file beside it is not what was written.
    """
    return {one.step.name: one for one in read_steps(journal.path.with_name(FILE), len(journal.done))}


def read_steps(path: Path, most: int | None = None) -> list[Measured]:
    """The steps of a run, as they were measured.

    Args:
        path: the file.
        most: lines of it to read; None for all.

    Raises:
        FileError: a line is no step.
        OSError: it cannot be read.
    """

    if most == 0:
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[:most], start=1):
        try:
            found.append(from_record(json.loads(line)))
        except (KeyError, TypeError, ValueError) as exc:
            raise FileError(path, number, f"is no step of a load test: {exc}") from exc
    return found
