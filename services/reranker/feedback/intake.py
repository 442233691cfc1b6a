"""Taking feedback in: batches of concurrent callers share a commit, and no agent takes another's place."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from meshkit.batching import MicroBatcher
from meshkit.errors import AlreadyExists, FailedPrecondition, MeshError, Overloaded
from services.reranker.domain import Agent
from services.reranker.feedback.domain import Fate, Feedback, Limits, Outcome
from services.reranker.feedback.ports import FeedbackStore
from services.reranker.feedback.served import ServedRankings

_PART: Final = 250
"""Items of one agent that queue together: others get between the parts of a large batch."""

_FULL_S: Final = 60.0
"""How long an agent at its quota is only looked up. Seconds."""


class FeedbackIntake:
    """Stores feedback for good; each item is stored, is a duplicate, or has an error of its own.

    Items that wait together share one transaction: while one batch is on its way to the disk, the next
    collects. An agent may have a quarter of what is in flight and no more, and one at its quota does not get
    to the disk at all: what it sends is only looked up, so that replays are still told as such.

    Args:
        store: where it goes.
        limits: as the store has them, for messages.
        commit_size: most items in one transaction, [1, inf).
        max_in_flight: most items on their way of all agents, [4, inf).
        served: what was served, if feedback for anything else is refused.
        clock: monotonic seconds.
        on_outcomes: told what became of each batch.
    """

    def __init__(
        self,
        store: FeedbackStore,
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
        self._full: dict[Agent, float] = {}
        self._commits: MicroBatcher[Sequence[Feedback], Sequence[Outcome]] = MicroBatcher(
            self._commit, max_size=commit_size, max_delay_s=0.0, cost=len, max_cost=commit_size
        )

    async def record(self, batch: Sequence[Feedback]) -> list[Outcome | MeshError]:
        """Stores a batch; one outcome or error per item, in order. Durable when it returns.

        Raises:
            Unavailable: nothing of it may have been stored; all of it may be sent again.
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

    async def close(self) -> None:
        """Stores what waits and takes no more."""
        await self._commits.close()

    async def _record_of(
        self,
        agent: Agent,
        batch: Sequence[Feedback],
        places: Sequence[int],
        results: list[Outcome | MeshError | None],
    ) -> None:
        count = len(places)
        all_in_flight = self._in_flight.total()
        if self._in_flight[agent] and (
            self._in_flight[agent] + count > self._max_in_flight // 4
            or all_in_flight + count > self._max_in_flight
        ):
            busy = Overloaded("too much feedback of this agent is on its way; try again in a second", 1.0)
            for at in places:
                results[at] = busy
            return
        self._in_flight[agent] += count
        try:
            if self._served is not None:
                places = await self._check_served(self._served, batch, places, results)
            for begin in range(0, len(places), _PART):
                part = places[begin : begin + _PART]
                outcomes = await self._store_part(agent, [batch[at] for at in part])
                for at, outcome in zip(part, outcomes, strict=True):
                    results[at] = self._told(outcome)
        finally:
            self._in_flight[agent] -= count
            if not self._in_flight[agent]:
                del self._in_flight[agent]

    async def _check_served(
        self,
        served: ServedRankings,
        batch: Sequence[Feedback],
        places: Sequence[int],
        results: list[Outcome | MeshError | None],
    ) -> list[int]:
        """The places of what was served; the others get their error. A replay of what is stored passes."""
        kept = []
        for at, known in zip(places, await self._store.find([batch[at] for at in places]), strict=True):
            one = batch[at]
            if known is None and not one.ranking:
                results[at] = FailedPrecondition(
                    "NOT_SERVED", "this server takes feedback only with the ranking it served"
                )
            elif known is None and not await served.was_served(
                one.query, one.agent, one.model_version, one.ranking
            ):
                results[at] = FailedPrecondition(
                    "NOT_SERVED",
                    "no ranking of these passages was served for this query, agent and model version",
                )
            else:
                kept.append(at)
        return kept

    async def _store_part(self, agent: Agent, part: Sequence[Feedback]) -> Sequence[Outcome]:
        if self._full.get(agent, -1.0) > self._clock():
            found = await self._store.find(part)
            return [Outcome(Fate.OVER_DAY) if one is None else one for one in found]
        self._full.pop(agent, None)
        outcomes = await self._commits.submit(part)
        if outcomes[-1].fate in (Fate.OVER_DAY, Fate.OVER_TOTAL):
            self._full[agent] = self._clock() + _FULL_S
        return outcomes

    async def _commit(self, parts: Sequence[Sequence[Feedback]]) -> list[Sequence[Outcome]]:
        outcomes = await self._store.record([one for part in parts for one in part])
        split = []
        begin = 0
        for part in parts:
            split.append(outcomes[begin : begin + len(part)])
            begin += len(part)
        return split

    def _told(self, outcome: Outcome) -> Outcome | MeshError:
        match outcome.fate:
            case Fate.STORED | Fate.DUPLICATE:
                return outcome
            case Fate.CONFLICT:
                return AlreadyExists("id", "this agent's id is stored with other content")
            case Fate.OVER_DAY | Fate.OVER_TOTAL:
                return _quota(
                    f"an agent may give {self._limits.per_day} items a day and have {self._limits.total} "
                    "stored; this one is at its quota"
                )
            case Fate.TOO_MANY_AGENTS:
                return _quota(f"there are {self._limits.agents} agents already, and no more may be")
            case Fate.UNREGISTERED:
                return FailedPrecondition("NOT_REGISTERED", "this server takes feedback of registered agents")


def _quota(message: str) -> MeshError:
    return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA", message)
