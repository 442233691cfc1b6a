"""Served rankings: a record of them tells feedback on them from feedback on anything else."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Final, TypeVar

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.tasks import cancel
from evenmesh_reranker.backends.sql.served import SqlServedStore
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.domain import Feedback, ServedRanking, passage_keys, served_key

_KEPT: Final = 16
"""Rankings kept for one query, agent and version, the newest."""

_WIDTH: Final = 8
H = TypeVar("H", bound=Sized)
_log = logging.getLogger("evenmesh.reranker.served")


class ServedRankings:
    """Knows which passages were ranked for which query, agent and model version.

    The orchestrator may sample a ranking from the scores, so the reranker does not know which passages an
    agent was given. Feedback counts as given on a served ranking if each of its passages was ranked for the
    query, agent and version, in one call or in several: long lists are ranked in several.

    A ranking is kept in memory at once and in the store within ``flush_s``: serving waits for no disk. It
    survives a restart; a crash loses the last moment. Other processes with the same store know it then too;
    until then they wait before they reject feedback on it.

    Args:
        store: keeps the rankings.
        capacity: queries, agents and versions in memory, the newest; the tenant with most loses its oldest.
            [1, inf).
        flush_s: time between two writes. Seconds, (0, inf).
        clock: returns the time now. Microseconds since 1970.
    """

    def __init__(
        self, store: SqlServedStore, *, capacity: int, flush_s: float = 0.2, clock: Callable[[], int]
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._flush_s = flush_s
        self._clock = clock
        self._known: dict[str, OrderedDict[bytes, list[bytes]]] = {}
        self._waiting: dict[str, deque[ServedRanking]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write what waits, and stop."""
        await cancel(self._task)
        await self._flush()

    def remember(self, query: str, agent: Agent, model_version: str, ids: Sequence[str]) -> None:
        """Record that passages were ranked."""
        key = served_key(query, agent, model_version)
        passages = b"".join(passage_keys(ids))
        mine = self._known.setdefault(agent.tenant, OrderedDict())
        known = mine.setdefault(key, [])
        mine.move_to_end(key)
        if passages in known:
            return
        known.insert(0, passages)
        del known[_KEPT:]
        if sum(map(len, self._known.values())) > self._capacity:
            _fullest(self._known).popitem(last=False)
        self._wait(ServedRanking(key, passages, self._clock(), agent.tenant))

    async def were_served(self, batch: Sequence[Feedback]) -> list[bool]:
        """Return for each item whether each passage of its ranking was ranked; an empty ranking never was.

        Another process may have ranked them a moment ago: what is not known is looked for again, at last when
        any process has had the time to write five times.

        Raises:
            Unavailable: they are not in memory and the store cannot be read.
        """
        answers: dict[tuple[Agent, str, str, tuple[str, ...]], bool] = {}
        for one in batch:
            answers[one.agent, one.query, one.model_version, one.ranking] = False
        for wait_s in (0.0, 1.5 * self._flush_s, 3.5 * self._flush_s):
            missing = [asked for asked, known in answers.items() if not known and asked[-1]]
            if not missing:
                break
            await asyncio.sleep(wait_s)
            for agent, query, version, ids in missing:
                answers[agent, query, version, ids] = await self._was_served(query, agent, version, ids)
        return [answers[one.agent, one.query, one.model_version, one.ranking] for one in batch]

    async def _was_served(self, query: str, agent: Agent, model_version: str, ids: Sequence[str]) -> bool:
        key = served_key(query, agent, model_version)
        wanted = passage_keys(ids)
        known = self._known.get(agent.tenant, OrderedDict()).get(key, [])
        return _covers(known, wanted) or _covers([*known, *await self._store.recall(key)], wanted)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._flush_s)
            try:
                await self._flush()
            except Exception:  # noqa: BLE001 - this task must not end: feedback would be rejected elsewhere
                _log.exception("served rankings cannot be written yet")

    def _wait(self, one: ServedRanking) -> None:
        self._waiting.setdefault(one.tenant, deque()).append(one)
        if sum(map(len, self._waiting.values())) > self._capacity:
            _fullest(self._waiting).popleft()

    async def _flush(self) -> None:
        batch = [one for waiting in self._waiting.values() for one in waiting]
        self._waiting = {}
        if not batch:
            return
        try:
            await self._store.remember(batch)
        except BaseException as error:
            # The next flush tries again; the fullest tenant's oldest are dropped if they are too many.
            newer, self._waiting = self._waiting, {}
            for one in (*batch, *(one for waiting in newer.values() for one in waiting)):
                self._wait(one)
            if not isinstance(error, Unavailable):
                raise
            _log.warning("served rankings cannot be written yet: %s", error.message)


def _fullest(held: dict[str, H]) -> H:
    """Return what the tenant that has most has."""
    return held[max(held, key=lambda tenant: len(held[tenant]))]


def _covers(rankings: Iterable[bytes], wanted: Sequence[bytes]) -> bool:
    there = {passages[at : at + _WIDTH] for passages in rankings for at in range(0, len(passages), _WIDTH)}
    return there.issuperset(wanted)
