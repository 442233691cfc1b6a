"""A run's steps one after the other: it says that it was stopped, also between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from evenmesh_lab.files import Journal
from evenmesh_studies.load.calls.call import Call, Outcome
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.calls.loops import LoopResult
from evenmesh_studies.load.plan import LoadPlan
from evenmesh_studies.load.resource_monitor import ResourceMonitor
from evenmesh_studies.load.run import evaluate_run
from evenmesh_studies.load.session import Session
from evenmesh_studies.load.settings import CallSettings
from evenmesh_studies.load.step import Step, StepResult

PLAN = LoadPlan("load", CallSettings(), callers=(1, 2), warm_up=0)


class Instant:
    """Makes one call of each step, and is asked to stop in the middle of a step or at its end."""

    processes = 1

    def __init__(self, stop: asyncio.Event, *, inside: str = "", after: str = "") -> None:
        self._stop = stop
        self._inside = inside
        self._after = after

    async def drive(self, step: Step, items: Sequence[Item], first: int, stop: asyncio.Event) -> LoopResult:
        if step.name == self._inside:
            stop.set()
        return LoopResult([Call(0.0, 0.0, 0.1, Outcome())], [], 0.1, 1.0, interrupted=stop.is_set())

    def begins(self, step: Step, place: int, count: int) -> None:
        """Follows the run."""

    def ended(self, measured: StepResult) -> None:
        if measured.step.name == self._after:
            self._stop.set()


@pytest.mark.parametrize(
    ("inside", "after", "steps", "interrupted"),
    [
        ("", "", ["closed-1", "closed-2"], False),
        ("closed-2", "", ["closed-1", "closed-2"], True),
        ("", "closed-1", ["closed-1"], True),
        ("", "closed-2", ["closed-1", "closed-2"], False),  # nothing is missing
    ],
)
async def test_a_run_says_whether_it_was_stopped_early(
    tmp_path: Path, inside: str, after: str, steps: list[str], interrupted: bool
) -> None:
    stop = asyncio.Event()
    instant = Instant(stop, inside=inside, after=after)
    with Journal(tmp_path / "journal.json", {}) as journal:
        session = Session(PLAN, instant, ResourceMonitor({}), [Item("q", "Why?")], journal, stop, instant)
        await session.run()
    assert [one.step.name for one in session.steps] == steps
    run = evaluate_run(
        "load",
        PLAN.settings,
        session.steps,
        None,
        {},
        local=False,
        seed=0,
        interrupted=session.interrupted,
    )
    assert run.interrupted is interrupted
