"""Taking feedback in: shared commits, quotas that spare the disk, and no agent in another's way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from evenmesh.wire.errors import AlreadyExists, MeshError, Overloaded, Unavailable
from evenmesh_reranker.domain import Agent, Scope
from evenmesh_reranker.feedback.domain import Feedback, Limits, Outcome, RecordStatus, StoredFeedback
from evenmesh_reranker.feedback.intake import FeedbackIntake

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")


class Store:
    """Takes ten items of an agent, as slowly as it is asked to."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.looked_up = 0
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.kept: dict[tuple[Agent, str], bytes] = {}
        self.away = self.no_room = False

    async def record(self, batch: Sequence[Feedback]) -> Sequence[Outcome]:
        self.commits.append(len(batch))
        await self.proceed.wait()
        if self.away:
            raise Unavailable("STORE_UNAVAILABLE", "away")
        found = []
        for one, known in zip(batch, await self._known(batch), strict=True):
            full = sum(agent == one.agent for agent, _ in self.kept) >= 10
            if known is None and not (full or self.no_room):
                self.kept[one.agent, one.id] = one.digest
            status = RecordStatus.OVER_DAY if full else RecordStatus.STORED
            found.append(known or Outcome(RecordStatus.OVER_BYTES if self.no_room else status))
        return found

    async def find(self, batch: Sequence[Feedback]) -> Sequence[Outcome | None]:
        self.looked_up += len(batch)
        return await self._known(batch)

    async def _known(self, batch: Sequence[Feedback]) -> list[Outcome | None]:
        digests = [self.kept.get((one.agent, one.id)) for one in batch]
        return [
            None
            if digest is None
            else Outcome(RecordStatus.DUPLICATE if digest == one.digest else RecordStatus.CONFLICT)
            for one, digest in zip(batch, digests, strict=True)
        ]

    async def page(
        self,
        scope: Scope,
        *,
        after: int = 0,
        limit: int = 1000,
        since_us: int = 0,
        include_flagged: bool = False,
    ) -> Sequence[StoredFeedback]:
        raise AssertionError("nobody reads here")

    async def delete_before(self, before_us: int, *, limit: int) -> int:
        raise AssertionError("nobody deletes here")


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def intake(store: Store, now: list[float]) -> FeedbackIntake:
    return FeedbackIntake(
        store, limits=Limits(), commit_size=100, max_in_flight=40, served=None, clock=lambda: now[0]
    )


def _items(*ids: object, agent: Agent = ANN, usefulness: float = 1.0) -> list[Feedback]:
    return [Feedback(str(id_), "q", "p", agent, usefulness) for id_ in ids]


async def test_what_waits_together_shares_a_commit(intake: FeedbackIntake, store: Store) -> None:
    store.proceed.clear()
    first = asyncio.create_task(intake.record(_items(0)))
    while not store.commits:
        await asyncio.sleep(0)
    others = [asyncio.create_task(intake.record(_items(at, agent=Agent("t", str(at))))) for at in range(9)]
    await asyncio.sleep(0.01)
    store.proceed.set()
    results = await asyncio.gather(first, *others)
    assert store.commits == [1, 9]
    assert results == [[Outcome(RecordStatus.STORED)]] * 10


async def test_outcomes_keep_their_order_over_agents(intake: FeedbackIntake) -> None:
    await intake.record(_items("a"))
    batch = [*_items("b"), *_items("a", agent=BOB), *_items("a"), *_items("a", usefulness=0.0)]
    stored, other, duplicate, conflict = await intake.record(batch)
    assert (stored, other, duplicate) == (
        Outcome(RecordStatus.STORED),
        Outcome(RecordStatus.STORED),
        Outcome(RecordStatus.DUPLICATE),
    )
    assert isinstance(conflict, AlreadyExists)


async def test_an_agent_at_its_quota_is_only_looked_up(
    intake: FeedbackIntake, store: Store, now: list[float]
) -> None:
    await intake.record(_items(*range(10)))
    (refused,) = await intake.record(_items(10))
    assert isinstance(refused, MeshError)
    assert refused.reason == "QUOTA"
    commits = list(store.commits)
    replayed, new = await intake.record(_items(3, 11))
    assert replayed == Outcome(RecordStatus.DUPLICATE)
    assert isinstance(new, MeshError)
    assert store.commits == commits
    assert (await intake.record(_items(0, agent=BOB))) == [Outcome(RecordStatus.STORED)]
    now[0] += 61
    await intake.record(_items(12))
    assert len(store.commits) == len(commits) + 2


async def test_a_tenant_without_room_gets_its_bound(intake: FeedbackIntake, store: Store) -> None:
    store.no_room = True
    (refused,) = await intake.record(_items(1))
    assert isinstance(refused, MeshError)
    assert refused.reason == "QUOTA"
    assert f"may have {Limits().tenant_bytes} bytes" in refused.message
    store.no_room = False
    assert await intake.record(_items(1)) == [Outcome(RecordStatus.STORED)]  # as soon as there is room


async def test_an_agent_has_a_quarter_of_what_is_in_flight(intake: FeedbackIntake, store: Store) -> None:
    store.proceed.clear()
    first = asyncio.create_task(intake.record(_items(*range(8))))
    await asyncio.sleep(0.01)
    refused = await intake.record(_items(*range(8, 11)))
    assert all(isinstance(one, Overloaded) for one in refused)
    other = asyncio.create_task(intake.record(_items(0, agent=BOB)))
    await asyncio.sleep(0.01)
    store.proceed.set()
    assert [len(one) for one in await asyncio.gather(first, other)] == [8, 1]
    assert (await intake.record(_items(8))) == [Outcome(RecordStatus.STORED)]


async def test_many_agents_of_a_tenant_leave_room_for_another(intake: FeedbackIntake, store: Store) -> None:
    store.proceed.clear()
    first = [
        asyncio.create_task(intake.record(_items(*range(10), agent=Agent("t", str(at), "loud"))))
        for at in range(3)
    ]
    await asyncio.sleep(0)
    (refused,) = await intake.record(_items(0, agent=Agent("t", "3", "loud")))
    assert isinstance(refused, Overloaded)
    assert (refused.reason, "this tenant" in refused.message) == ("SHARE_FULL", True)
    quiet = asyncio.create_task(intake.record(_items(*range(10), agent=Agent("t", "0", "quiet"))))
    await asyncio.sleep(0)
    store.proceed.set()
    assert [len(one) for one in await asyncio.gather(*first)] == [10] * 3
    assert await quiet == [Outcome(RecordStatus.STORED)] * 10


async def test_a_store_that_is_away_fails_the_call(intake: FeedbackIntake, store: Store) -> None:
    store.away = True
    with pytest.raises(Unavailable):
        await intake.record(_items(0))
    store.away = False
    assert (await intake.record(_items(0))) == [Outcome(RecordStatus.STORED)]
    await intake.close()
    with pytest.raises(Unavailable):
        await intake.record(_items(1))
