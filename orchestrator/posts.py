"""The stage *observe*: observations on their way into the outbox, and what became of them."""

from __future__ import annotations

import asyncio

from meshkit.errors import DeadlineExceeded, MeshError
from orchestrator.budgets import Clock, Plan, setback_of
from orchestrator.domain import Action, Degraded, Observation, Stage
from orchestrator.policy import INSTEAD, Step
from orchestrator.ports import Observer, Receipt


class Posts:
    """Posts observations; each outlives the call it is of: what was shown was shown.

    Args:
        observer: keeps them.
        plan: how long a run's report is waited for.
    """

    def __init__(self, observer: Observer, plan: Plan) -> None:
        self._observer = observer
        self._plan = plan
        self._under_way: set[asyncio.Task[Receipt]] = set()

    def begin(self, observation: Observation) -> asyncio.Task[Receipt]:
        """Starts keeping an observation."""
        post = asyncio.create_task(self._observer.post(observation))
        self._under_way.add(post)
        post.add_done_callback(self._under_way.discard)
        return post

    async def outcome(
        self, post: asyncio.Task[Receipt], clock: Clock
    ) -> tuple[object | None, list[Degraded]]:
        """Waits until an observation is kept and, where it is wanted, for the run's report."""
        try:
            async with asyncio.timeout(clock.closing_budget()):
                receipt = await asyncio.shield(post)
        except (TimeoutError, DeadlineExceeded):
            # Not lost as far as anyone knows: the write goes on, it is only not waited for any longer.
            return None, [_observing(Action.OBSERVATION_QUEUED, "OUTBOX_SLOW", "the outbox is slow")]
        except MeshError as error:
            return None, [_observing(Action.OBSERVATION_DROPPED, error.reason, error.message)]
        if receipt.report is None:
            if receipt.waits is None:
                return None, []
            return None, [
                _observing(
                    Action.OBSERVATION_QUEUED, receipt.waits, "the evaluator takes no observations now"
                )
            ]
        try:
            async with asyncio.timeout(clock.closing_budget(cap_s=self._plan.report_wait_s)):
                return await receipt.report, []
        except (TimeoutError, DeadlineExceeded):
            return None, [
                _observing(
                    Action.OBSERVATION_QUEUED, "BUDGET_EXCEEDED", "the run's report did not come in time"
                )
            ]
        except MeshError as error:
            return None, [setback_of(Step.SEND_OBSERVATION, error).degraded]

    async def settle(self) -> None:
        """Waits until every observation that was begun to be kept is kept, or given up."""
        while self._under_way:
            await asyncio.wait(self._under_way)


def _observing(action: Action, reason: str, why: str) -> Degraded:
    return Degraded(Stage.OBSERVE, action, reason, f"{why}: {INSTEAD[action]}")
