"""Remembering what was served, to know feedback for it from feedback for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from meshkit.errors import Unavailable
from services.reranker.domain import Agent
from services.reranker.feedback.domain import Served, passage_keys, served_key
from services.reranker.feedback.ports import ServedStore

_KEPT: Final = 8
"""Rankings of one query, agent and version that are remembered, the newest."""

_WIDTH: Final = 8
_log = logging.getLogger("ragmesh.reranker.served")


class ServedRankings:
    """Which passages were ranked for which query, agent and model version.

    Which of them the agent was then given, and in which order, is the mesh's affair: rankings may be sampled
    from the scores. So feedback is for what was served if all passages of its ranking were ranked together.

    What is served is remembered in memory at once and in the store within ``flush_s``, so that serving waits
    for no disk: it survives a restart, and a crash forgets what was served in the last moment before it.
    Other processes with the same store know it as soon as it is there.

    Args:
        store: where it is kept.
        capacity: queries, agents and versions in memory, the newest, [1, inf).
        flush_s: how often it is written. Seconds, (0, inf).
        clock: what time it is. Microseconds since 1970.
    """

    def __init__(
        self, store: ServedStore, *, capacity: int, flush_s: float = 0.2, clock: Callable[[], int]
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._flush_s = flush_s
        self._clock = clock
        self._known: OrderedDict[bytes, list[bytes]] = OrderedDict()
        self._waiting: deque[Served] = deque(maxlen=capacity)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to write."""
        self._task = asyncio.create_task(self._flush_on())

    async def close(self) -> None:
        """Writes what waits and ends."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._flush()

    def remember(self, query: str, agent: Agent, model_version: str, ids: Sequence[str]) -> None:
        """Remembers that passages were ranked."""
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
        self._waiting.append(Served(key, passages, self._clock()))

    async def was_served(self, query: str, agent: Agent, model_version: str, ids: Sequence[str]) -> bool:
        """Whether the passages were ranked together.

        Raises:
            Unavailable: it is not in memory and the store cannot be read.
        """
        key = served_key(query, agent, model_version)
        wanted = passage_keys(ids)
        if any(_covers(passages, wanted) for passages in self._known.get(key, ())):
            return True
        return any(_covers(passages, wanted) for passages in await self._store.recall(key))

    async def _flush_on(self) -> None:
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
            # Tried again with the next; what is too much falls out at the front.
            self._waiting = deque([*batch, *self._waiting], maxlen=self._capacity)
            if not isinstance(error, Unavailable):
                raise
            _log.warning("what was served cannot be written yet: %s", error.message)


def _covers(passages: bytes, wanted: Sequence[bytes]) -> bool:
    there = {passages[at : at + _WIDTH] for at in range(0, len(passages), _WIDTH)}
    return there.issuperset(wanted)
