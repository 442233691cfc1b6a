"""The observe stage: store observations in the outbox, and report what happened to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from evenmesh.evaluator.v1.evaluator_service_pb2 import RunReport
from evenmesh.wire.errors import DeadlineExceeded, MeshError
from evenmesh_orchestrator.asks.budgets import Clock, PipelineConfig, handle
from evenmesh_orchestrator.asks.failure_policy import INSTEAD, Step
from evenmesh_orchestrator.domain import Action, Degraded, Observation, Stage
from evenmesh_orchestrator.ports import Observer, Receipt


class ObservationPublisher:
    """Publishes observations. Each outlives its call: what a caller saw must be observed.

    Args:
        observer: stores them.
        config: how long to wait for a run's report.
    """

    def __init__(self, observer: Observer, config: PipelineConfig) -> None:
        self._observer = observer
        self._config = config
        self._pending: set[asyncio.Task[Receipt]] = set()

    def publish(self, observation: Observation) -> asyncio.Task[Receipt]:
        """Start storing an observation."""
        task = asyncio.create_task(self._observer.submit(observation))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    async def outcome(
        self, tasks: Sequence[asyncio.Task[Receipt]], clock: Clock
    ) -> tuple[RunReport | None, list[Degraded]]:
        """Wait until observations are stored and, where one is wanted, for the run's report.

        Returns:
            The report, and what failed, each reason once.
        """
        run: RunReport | None = None
        degraded: dict[str, Degraded] = {}
        for task in tasks:
            result = await self._outcome(task, clock)
            if isinstance(result, Degraded):
                degraded.setdefault(result.reason, result)
            else:
                run = run if result is None else result
        return run, list(degraded.values())

    async def drain(self) -> None:
        """Wait until every pending observation is stored or has failed."""
        while self._pending:
            await asyncio.wait(self._pending)

    async def _outcome(self, task: asyncio.Task[Receipt], clock: Clock) -> RunReport | Degraded | None:
        try:
            async with asyncio.timeout(clock.closing_budget()):
                receipt = await asyncio.shield(task)
        except (TimeoutError, DeadlineExceeded):
            # Probably not lost: the write goes on, but this call no longer waits for it.
            return _degraded(Action.OBSERVATION_QUEUED, "OUTBOX_SLOW", "the outbox is slow")
        except MeshError as error:
            return _degraded(Action.OBSERVATION_DROPPED, error.reason, error.message)
        if receipt.report is None:
            if receipt.waits is None:
                return None
            return _degraded(
                Action.OBSERVATION_QUEUED, receipt.waits, "the evaluator takes no observations now"
            )
        try:
            async with asyncio.timeout(clock.closing_budget(cap_s=self._config.report_wait_s)):
                return await receipt.report
        except (TimeoutError, DeadlineExceeded):
            why = "the run's report did not come in time"
            return _degraded(Action.OBSERVATION_QUEUED, "BUDGET_EXCEEDED", why)
        except MeshError as error:
            return handle(Step.SEND_OBSERVATION, error).degraded


def _degraded(action: Action, reason: str, why: str) -> Degraded:
    return Degraded(Stage.OBSERVE, action, reason, f"{why}: {INSTEAD[action]}")
