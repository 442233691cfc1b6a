"""The time of an ask, and calls that keep within it and fail as the policy says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc

from meshkit.deadline import LONGEST_BUDGET_S, Deadline
from meshkit.errors import MeshError
from orchestrator.domain import Action, Degraded, Stage
from orchestrator.policy import INSTEAD, POLICY, Step, failure_of

T = TypeVar("T")

_LONGEST_CLOSING_S: Final = 0.5
_MARGIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage and the part of an ask's whole time that it may take at most, a fraction in (0, 1]."""

    stage: Stage
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How asks are run.

    Attributes:
        stages: the stages that call other services, in order. A share of 1 means all that is left.
        closing_share: part of the whole time kept for report and end, at most half a second. Fraction, (0,
            1).
        batch_size: contexts per batch call, [1, 256].
        batches_in_flight: batch calls of one ask at a time, [1, inf).
        report_wait_s: longest wait for a run's report. Seconds, [0, inf).
    """

    stages: tuple[StageSpec, ...]
    closing_share: float
    batch_size: int
    batches_in_flight: int
    report_wait_s: float

    def share(self, stage: Stage) -> float:
        """The share of a stage; one that is not listed may take all that is left."""
        return next((spec.share for spec in self.stages if spec.stage is stage), 1.0)


@dataclass(frozen=True, slots=True)
class Setback:
    """A step failed, and the policy knows what to do instead."""

    error: MeshError
    degraded: Degraded


class Clock:
    """The time of one ask: what is left of it, and what each stage took."""

    def __init__(self, deadline: Deadline, plan: Plan) -> None:
        self._plan = plan
        self._deadline = deadline
        self._began = time.perf_counter()
        self._total_s = min(deadline.remaining(), LONGEST_BUDGET_S)
        self._closing_s = min(plan.closing_share * self._total_s, _LONGEST_CLOSING_S)
        self.stage_ms: dict[Stage, float] = {}

    def budget(self, stage: Stage) -> float:
        """Seconds that a step of the stage may take now. Raises DeadlineExceeded when nothing is left."""
        return self._deadline.budget(
            cap_s=self._plan.share(stage) * self._total_s, margin_s=self._closing_s + _MARGIN_S
        )

    def closing_budget(self, cap_s: float = LONGEST_BUDGET_S) -> float:
        """Seconds that closing the ask may take. Raises DeadlineExceeded when nothing is left."""
        return self._deadline.budget(cap_s=cap_s, margin_s=_MARGIN_S)

    def took(self, stage: Stage, began: float) -> None:
        """Notes that a stage that began at ``began`` is over."""
        self.stage_ms[stage] = 1000 * (time.perf_counter() - began)

    @property
    def left_s(self) -> float:
        """Seconds left of the whole, at most a day."""
        return min(self._deadline.remaining(), LONGEST_BUDGET_S)

    @property
    def total_ms(self) -> float:
        """Milliseconds since the ask began."""
        return 1000 * (time.perf_counter() - self._began)


async def attempt(
    clock: Clock,
    step: Step,
    call: Callable[[float], Awaitable[T]],
    *,
    who: str = "",
    until: Deadline | None = None,
) -> T | Setback:
    """Makes a call within its stage's budget; what is done when it fails is the policy's.

    Args:
        clock: of the ask.
        step: what is attempted.
        call: is given the seconds it may take.
        who: who is called, for messages; the step's own words where it is empty.
        until: when the whole stage must be over, where it makes several calls in turn.

    Raises:
        MeshError: it failed, and the policy has no substitute.
    """
    try:
        budget = clock.budget(step.stage)
        if until is not None:
            budget = min(budget, until.budget(margin_s=0.0))
        async with asyncio.timeout(budget):
            return await call(budget)
    except TimeoutError:
        error = MeshError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "BUDGET_EXCEEDED",
            f"{who or step.who} did not answer within its share of the time",
        )
    except MeshError as failed:
        error = failed
    return setback_of(step, error, who=who)


def setback_of(step: Step, error: MeshError, *, who: str = "") -> Setback:
    """What the policy says about a failed step; raises the error where it says that the ask fails."""
    failure = failure_of(error)
    action = POLICY[step, failure]
    if action is Action.FAIL:
        raise error
    return Setback(
        error,
        Degraded(step.stage, action, failure.reason, f"{who or step.who} {failure.what}: {INSTEAD[action]}"),
    )
