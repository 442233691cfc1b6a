"""Served rankings: a record of them tells feedback on them from feedback on anything else."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.tasks import cancel
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.domain import ServedRanking, passage_keys, served_key
from evenmesh_reranker.feedback.ports import ServedStore

_KEPT: Final = 8
"""Rankings kept for one query, agent and version, the newest."""

_WIDTH: Final = 8
_log = logging.getLogger("evenmesh.reranker.served")


class ServedRankings:
    """Knows which passages were ranked for which query, agent and model version.

    The orchestrator may sample a ranking from the scores, so the reranker does not know which passages an
    agent was given. Feedback counts as given on a served ranking if all its passages were ranked together.

    A ranking is kept in memory at once and in the store within ``flush_s``: serving waits for no disk. It
    survives a restart; a crash loses the last moment. Other processes with the same store then know it too.

    Args:
        store: keeps the rankings.
        capacity: queries, agents and versions in memory, the newest, [1, inf).
        flush_s: time between two writes. Seconds, (0, inf).
        clock: returns the time now. Microseconds since 1970.
    """

    def __init__(
        self, store: ServedStore, *, capacity: int, flush_s: float = 0.2, clock: Callable[[], int]
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._flush_s = flush_s
        self._clock = clock
        self._known: OrderedDict[bytes, list[bytes]] = OrderedDict()
        self._waiting: deque[ServedRanking] = deque(maxlen=capacity)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write what waits, and stop."""
        await cancel(self._task)
        await self._flush()

    def remember(self, query: str, agent: Agent, model_version: str, ids: Sequence[str]) -> None:
        """Record that passages were ranked together."""
        key = served_key(query, agent, model_version)
        passages = b"".join(passage_keys(ids))
        known = self._known.setdefault(key, [])
        self._known.move_to_end(key)
        if passages in known:
            return
        known.insert(0, passages)
        del known[_KEPT:]
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        self._waiting.append(ServedRanking(key, passages, self._clock()))

    async def was_served(self, query: str, agent: Agent, model_version: str, ids: Sequence[str]) -> bool:
        """Return whether the passages were ranked together.

        Raises:
            Unavailable: the ranking is not in memory and the store cannot be read.
        """
        key = served_key(query, agent, model_version)
        wanted = passage_keys(ids)
        if any(_covers(passages, wanted) for passages in self._known.get(key, ())):
            return True
        return any(_covers(passages, wanted) for passages in await self._store.recall(key))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._flush_s)
            await self._flush()

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting, deque(maxlen=self._capacity)
        if not batch:
            return
        try:
            await self._store.remember(batch)
        except BaseException as error:
            # The next flush tries again; the oldest rankings are dropped if they are too many.
            self._waiting = deque([*batch, *self._waiting], maxlen=self._capacity)
            if not isinstance(error, Unavailable):
                raise
            _log.warning("served rankings cannot be written yet: %s", error.message)


def _covers(passages: bytes, wanted: Sequence[bytes]) -> bool:
    there = {passages[at : at + _WIDTH] for at in range(0, len(passages), _WIDTH)}
    return there.issuperset(wanted)
