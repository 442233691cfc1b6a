"""The time of an ask, and calls that stay within it and fail as the failure policy says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc

from evenmesh.wire.deadline import LONGEST_BUDGET_S, Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_orchestrator.asks.failure_policy import INSTEAD, POLICY, Step, failure_of
from evenmesh_orchestrator.domain import Action, Ask, Degraded, Finished, Stage

T = TypeVar("T")

_MAX_CLOSING_S: Final = 0.5
_MARGIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Budgets and sizes of the flow.

    Attributes:
        shares: largest part of an ask's time per stage, fractions in (0, 1]; without an entry a stage may
            take all that is left.
        closing_share: part of an ask's time reserved for its report and end, at most half a second. Fraction,
            (0, 1).
        batch_size: contexts per batch call, [1, 256].
        batches_in_flight: concurrent batch calls of one ask, [1, inf).
        report_wait_s: longest wait for a run's report. Seconds, [0, inf).
    """

    shares: Mapping[Stage, float]
    closing_share: float
    batch_size: int
    batches_in_flight: int
    report_wait_s: float


@dataclass(frozen=True, slots=True)
class HandledFailure:
    """A step failed, and the policy has a substitute."""

    error: MeshError
    degraded: Degraded


class Clock:
    """The time of one ask: what is left, and what each stage took."""

    def __init__(self, deadline: Deadline, config: PipelineConfig) -> None:
        self._config = config
        self._deadline = deadline
        self._began = time.perf_counter()
        self._total_s = min(deadline.remaining(), LONGEST_BUDGET_S)
        self._closing_s = min(config.closing_share * self._total_s, _MAX_CLOSING_S)
        self.stage_ms: dict[Stage, float] = {}

    def budget(self, stage: Stage) -> float:
        """Return the seconds that a step of the stage may take. Raise DeadlineExceeded if none is left."""
        share = self._config.shares.get(stage, 1.0)
        return self._deadline.budget(cap_s=share * self._total_s, margin_s=self._closing_s + _MARGIN_S)

    def closing_budget(self, cap_s: float = LONGEST_BUDGET_S) -> float:
        """Return the seconds that closing the ask may take. Raise DeadlineExceeded if none is left."""
        return self._deadline.budget(cap_s=cap_s, margin_s=_MARGIN_S)

    def record(self, stage: Stage, began: float) -> None:
        """Record the time of a stage that began at ``began`` (``time.perf_counter``) and ends now."""
        self.stage_ms[stage] = 1000 * (time.perf_counter() - began)

    def finished(self, ask: Ask) -> Finished:
        """Return the event that ends the ask."""
        total_ms = 1000 * (time.perf_counter() - self._began)
        return Finished(ask.id, ask.run_id, self.stage_ms, total_ms, ask.drawn_seed)

    @property
    def left_s(self) -> float:
        """Seconds left in total, at most a day."""
        return min(self._deadline.remaining(), LONGEST_BUDGET_S)


async def attempt(
    clock: Clock,
    step: Step,
    call: Callable[[float], Awaitable[T]],
    *,
    who: str = "",
    until: Deadline | None = None,
) -> T | HandledFailure:
    """Make a call within the budget of its stage and handle its failure as the policy says.

    Args:
        clock: of the ask.
        step: what is attempted.
        call: receives the seconds it may take.
        who: name of the called service for messages; the step's own where it is empty.
        until: end of the whole stage, where it makes several calls in turn.

    Raises:
        MeshError: the call failed, and the policy has no substitute.
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
    return handle(step, error, who=who)


def handle(step: Step, error: MeshError, *, who: str = "") -> HandledFailure:
    """Return the policy's substitute for a failed step; raise the error if the ask must fail."""
    failure = failure_of(error)
    action = POLICY[step, failure]
    if action is Action.FAIL:
        raise error
    message = f"{who or step.who} {failure.what}: {INSTEAD[action]}"
    return HandledFailure(error, Degraded(step.stage, action, failure.reason, message))
