"""The trainer's loop: find agents with enough new feedback, and train one after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from evenmesh.wire.errors import Unavailable
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.leases import SqlLeases
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.training import Training
from evenmesh_training.online.rounds import RoundError, Rounds

_FIRST_WAIT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 600.0
_SHARE: Final = 20
"""Looking for work takes at most a twentieth of the time."""

_log = logging.getLogger("evenmesh.trainer")


@dataclass(eq=False)
class Trainer:
    """Trains agents with feedback on enough queries since their last training.

    Tenants take turns: that which this trainer served longest ago is first, and of its agents the one with
    feedback on most queries. So no tenant's feedback keeps another from being trained.

    It tries an agent whose round fails again after 10 s, then after twice as long each time, at most 10
    minutes; other agents do not wait for it. One agent at a time bounds the memory.

    Args:
        rounds: trains an agent.
        store: keeps the feedback.
        log: knows what waits for training.
        leases: gives the right to train an agent.
        at_once: trainers that train at a time, each an agent, [1, inf); None: as many as there are.
        queries: b, distinct queries after which an agent is trained, [1, inf).
        wake_s: time between two looks for work. Seconds, (0, inf).
        clock: monotonic seconds.
    """

    rounds: Rounds
    _: KW_ONLY
    store: SqlFeedbackStore
    log: SqlTrainingLog
    leases: SqlLeases
    queries: int
    wake_s: float
    at_once: int | None = None
    clock: Callable[[], float] = time.monotonic
    _seen: int = field(default=-1, init=False)
    _failed: dict[Agent, tuple[float, float]] = field(default_factory=dict, init=False)
    _turns: int = field(default=0, init=False)
    _served: dict[str, int] = field(default_factory=dict, init=False)
    """The last turn of each tenant."""

    async def run(self) -> None:
        """Train until cancelled."""
        while True:
            began = self.clock()
            try:
                trained = await self.turn()
            except Unavailable as error:
                _log.warning("nothing can be trained now: %s", error.message)
                trained = False
            if not trained:
                await asyncio.sleep(max(self.wake_s, _SHARE * (self.clock() - began)))

    async def turn(self) -> bool:
        """Train at most one agent; return whether it did.

        Raises:
            Unavailable: the database is away.
        """
        latest = await self.store.latest()
        if latest == self._seen:
            return False
        due = await self._due()
        if not due:
            self._seen = latest
        refused = 0
        for training in due:
            agent = training.report.agent
            if agent is None or self._failed.get(agent, (0.0, 0.0))[0] > self.clock():
                continue
            if not await self.leases.take(agent):
                refused += 1
                if refused == self.at_once:
                    return False  # as many train as may
                continue
            self._turns += 1
            self._served[agent.tenant] = self._turns
            await self._train(agent)
            return True
        return False

    async def _due(self) -> list[Training]:
        waiting = await self.log.trainings_of_agents()
        agents = [one.report.agent for one in waiting if one.report.agent is not None]
        await asyncio.to_thread(self.rounds.forget_others, agents)
        due = [one for one in waiting if one.pending_queries >= self.queries]
        return sorted(due, key=lambda one: (self._last_turn(one.report.agent), -one.pending_queries))

    def _last_turn(self, agent: Agent | None) -> int:
        return 0 if agent is None else self._served.get(agent.tenant, 0)

    async def _train(self, agent: Agent) -> None:
        try:
            # Another trainer may have trained the agent between the look and the lease.
            now = await self.log.training(agent)
            if now.pending_queries >= self.queries:
                await self.rounds.run(now)
            self._failed.pop(agent, None)
        except RoundError as error:
            wait = min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, 2 * self._failed.get(agent, (0.0, 0.0))[1]))
            self._failed[agent] = self.clock() + wait, wait
            _log.warning("a round failed and begins again in %g s: %s", wait, error)
        finally:
            try:
                await asyncio.shield(self.leases.give_back(agent))
            except Unavailable as error:
                _log.warning("a lease was not given back and expires: %s", error.message)
