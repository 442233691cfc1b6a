"""Accept feedback: concurrent batches share a commit, and no agent crowds out another."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from evenmesh.wire.errors import (
    OVERLOADED,
    SHARE_FULL,
    AlreadyExists,
    FailedPrecondition,
    MeshError,
    Overloaded,
)
from evenmesh_kit.compute.batching import MicroBatcher
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.domain import Feedback, Limits, Outcome, RecordStatus
from evenmesh_reranker.feedback.served import ServedRankings

_PART: Final = 250
_ALL: Final = "all tenants"
"""Items of one agent that queue together: other agents get between the parts of a large batch."""

_FULL_S: Final = 60.0
"""Time during which items of an agent at its quota are only looked up. Seconds."""


class FeedbackIntake:
    """Stores feedback durably; each item is stored, is a duplicate, or gets its own error.

    Items that wait together share one transaction: while one batch is written to the disk, the next collects.
    One agent may have a quarter of the items in flight, and the agents of one tenant three quarters. Items of
    an agent at its quota do not reach the disk: they are only looked up, so that replays are still answered
    as duplicates.

    Args:
        store: keeps the feedback.
        limits: limits of the store, for messages.
        commit_size: most items in one transaction, [1, inf).
        max_in_flight: most items in flight of all agents, [4, inf).
        served: served rankings, if feedback on anything else is rejected.
        clock: monotonic seconds.
        on_outcomes: called with the outcomes of each batch.
    """

    def __init__(
        self,
        store: SqlFeedbackStore,
        *,
        limits: Limits,
        commit_size: int,
        max_in_flight: int,
        served: ServedRankings | None,
        clock: Callable[[], float],
        on_outcomes: Callable[[Sequence[Outcome | MeshError]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._limits = limits
        self._max_in_flight = max_in_flight
        self._served = served
        self._clock = clock
        self._on_outcomes = on_outcomes
        self._in_flight: Counter[Agent] = Counter()
        self._of_tenants: Counter[str] = Counter()
        self._full: dict[Agent, float] = {}
        self._commits: MicroBatcher[Sequence[Feedback], Sequence[Outcome]] = MicroBatcher(
            self._commit, max_size=commit_size, max_delay_s=0.0, cost=len, max_cost=commit_size
        )

    async def record(self, batch: Sequence[Feedback]) -> list[Outcome | MeshError]:
        """Store a batch; return one outcome or error per item, in order. Durable on return.

        Raises:
            Unavailable: it is unknown whether items were stored; the caller may send all of them again.
        """
        results: list[Outcome | MeshError | None] = [None] * len(batch)
        by_agent: dict[Agent, list[int]] = defaultdict(list)
        for at, one in enumerate(batch):
            by_agent[one.agent].append(at)
        done = await asyncio.gather(
            *(self._record_of(agent, batch, places, results) for agent, places in by_agent.items()),
            return_exceptions=True,
        )
        for error in done:
            if error is not None:
                raise error
        outcomes = [one for one in results if one is not None]
        self._on_outcomes(outcomes)
        return outcomes

    def forget(self, agent: Agent) -> None:
        """Take feedback of an agent that was deleted as that of a new one, which has its whole quota."""
        self._full.pop(agent, None)

    async def close(self) -> None:
        """Store what waits and accept no more."""
        await self._commits.close()

    async def _record_of(
        self,
        agent: Agent,
        batch: Sequence[Feedback],
        places: Sequence[int],
        results: list[Outcome | MeshError | None],
    ) -> None:
        count = len(places)
        if whose := self._full_share(agent, count):
            reason = OVERLOADED if whose == _ALL else SHARE_FULL
            busy = Overloaded(
                f"too much feedback of {whose} is in flight; try again in a second", 1.0, reason
            )
            for at in places:
                results[at] = busy
            return
        self._in_flight[agent] += count
        self._of_tenants[agent.tenant] += count
        try:
            if self._served is not None:
                places = await self._check_served(self._served, batch, places, results)
            for begin in range(0, len(places), _PART):
                part = places[begin : begin + _PART]
                outcomes = await self._store_part(agent, [batch[at] for at in part])
                for at, outcome in zip(part, outcomes, strict=True):
                    results[at] = self._result(outcome)
        finally:
            self._in_flight[agent] -= count
            if not self._in_flight[agent]:
                del self._in_flight[agent]
            self._of_tenants[agent.tenant] -= count
            if not self._of_tenants[agent.tenant]:
                del self._of_tenants[agent.tenant]

    def _full_share(self, agent: Agent, count: int) -> str:
        """Return whose share has no room for so many items, if any. An unused share takes any number."""
        most = self._max_in_flight
        shares = (
            ("this agent", self._in_flight[agent], most // 4),
            ("this tenant", self._of_tenants[agent.tenant], 3 * most // 4),
            (_ALL, self._of_tenants.total(), most),
        )
        return next((whose for whose, held, share in shares if held and held + count > share), "")

    async def _check_served(
        self,
        served: ServedRankings,
        batch: Sequence[Feedback],
        places: Sequence[int],
        results: list[Outcome | MeshError | None],
    ) -> list[int]:
        """Return the places of feedback on served rankings or of replays; set the error of the others."""
        found = await self._store.find([batch[at] for at in places])
        new = [at for at, known in zip(places, found, strict=True) if known is None]
        rejected = set()
        for at, was_served in zip(new, await served.were_served([batch[at] for at in new]), strict=True):
            if was_served:
                continue
            message = "this server accepts feedback only with the ranking it served"
            if batch[at].ranking:
                message = "no ranking of these passages was served for this query, agent and model version"
            results[at] = FailedPrecondition("NOT_SERVED", message)
            rejected.add(at)
        return [at for at in places if at not in rejected]

    async def _store_part(self, agent: Agent, part: Sequence[Feedback]) -> Sequence[Outcome]:
        if self._full.get(agent, -1.0) > self._clock():
            found = await self._store.find(part)
            return [Outcome(RecordStatus.OVER_DAY) if one is None else one for one in found]
        self._full.pop(agent, None)
        outcomes = await self._commits.submit(part)
        if outcomes[-1].status in (RecordStatus.OVER_DAY, RecordStatus.OVER_TOTAL):
            self._full[agent] = self._clock() + _FULL_S
        return outcomes

    async def _commit(self, parts: Sequence[Sequence[Feedback]]) -> list[Sequence[Outcome]]:
        outcomes = iter(await self._store.record([one for part in parts for one in part]))
        return [[next(outcomes) for _ in part] for part in parts]

    def _result(self, outcome: Outcome) -> Outcome | MeshError:
        match outcome.status:
            case RecordStatus.STORED | RecordStatus.DUPLICATE:
                return outcome
            case RecordStatus.CONFLICT:
                return AlreadyExists("id", "this agent's id is stored with other content")
            case RecordStatus.OVER_DAY | RecordStatus.OVER_TOTAL:
                return _quota(
                    f"an agent may give {self._limits.per_day} items a day and have {self._limits.total} "
                    "stored; this one is at its quota"
                )
            case RecordStatus.OVER_BYTES:
                return _quota(
                    f"the feedback of a tenant may have {self._limits.tenant_bytes} bytes; no more fits "
                    "until old feedback is deleted"
                )
            case RecordStatus.TOO_MANY_AGENTS:
                return _quota(f"there are {self._limits.agents} agents already, and no more may be")
            case RecordStatus.UNREGISTERED:
                message = "this server accepts feedback of registered agents only"
                return FailedPrecondition("NOT_REGISTERED", message)


def _quota(message: str) -> MeshError:
    return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA", message)
