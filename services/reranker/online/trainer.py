"""The trainer's loop: looks who gave enough, and trains one agent after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from meshkit.errors import Unavailable
from services.reranker.domain import Agent
from services.reranker.feedback.ports import FeedbackStore, TrainingLog
from services.reranker.feedback.training import Training
from services.reranker.online.ports import Leases
from services.reranker.online.rounds import RoundError, Rounds

_FIRST_WAIT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 600.0
_SHARE: Final = 20
"""What looking costs at most: a twentieth of the time."""

_log = logging.getLogger("ragmesh.trainer")


class Trainer:
    """Trains whoever gave feedback for enough queries since its last training, the one with most first.

    An agent whose round fails is tried again after 10 s, then after twice as long each time, at most 10
    minutes; others are not kept waiting by it. One at a time bounds the memory.

    Args:
        rounds: trains an agent.
        store: the feedback.
        log: what waits for training.
        leases: the right to train an agent.
        queries: b, distinct queries after which an agent is trained, [1, inf).
        wake_s: how often is looked. Seconds, (0, inf).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        rounds: Rounds,
        *,
        store: FeedbackStore,
        log: TrainingLog,
        leases: Leases,
        queries: int,
        wake_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rounds = rounds
        self._store = store
        self._log = log
        self._leases = leases
        self._queries = queries
        self._wake_s = wake_s
        self._clock = clock
        self._seen = -1
        self._failed: dict[Agent, tuple[float, float]] = {}

    async def run(self) -> None:
        """Trains until cancelled."""
        while True:
            began = self._clock()
            try:
                trained = await self.turn()
            except Unavailable as error:
                _log.warning("nothing can be trained now: %s", error.message)
                trained = False
            if not trained:
                await asyncio.sleep(max(self._wake_s, _SHARE * (self._clock() - began)))

    async def turn(self) -> bool:
        """Trains at most one agent; whether it did.

        Raises:
            Unavailable: the database is away.
        """
        latest = await self._store.latest()
        if latest == self._seen:
            return False
        due = await self._due()
        if not due:
            self._seen = latest
        for training in due:
            agent = training.report.agent
            if agent is None or self._failed.get(agent, (0.0, 0.0))[0] > self._clock():
                continue
            if not await self._leases.take(agent):
                continue
            await self._train(training, agent)
            return True
        return False

    async def _due(self) -> list[Training]:
        waiting = await self._log.trainings_of_agents()
        due = [one for one in waiting if one.pending_queries >= self._queries]
        return sorted(due, key=lambda one: -one.pending_queries)

    async def _train(self, training: Training, agent: Agent) -> None:
        try:
            # What it is due for may have been trained on by another since it was looked.
            now = await self._log.training(agent)
            if now.pending_queries >= self._queries:
                await self._rounds.run(now)
            self._failed.pop(agent, None)
        except RoundError as error:
            wait = min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, 2 * self._failed.get(agent, (0.0, 0.0))[1]))
            self._failed[agent] = self._clock() + wait, wait
            _log.warning("a round failed and begins again in %g s: %s", wait, error)
        finally:
            try:
                await asyncio.shield(self._leases.give_back(agent))
            except Unavailable as error:
                _log.warning("a lease runs out by itself: %s", error.message)
