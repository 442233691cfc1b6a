"""Statements of the last seconds are shared, by tenant; who asks for too many different ones has to wait."""

from __future__ import annotations

import asyncio

import pytest

from evenmesh.wire import deadline
from evenmesh.wire.errors import DeadlineExceeded, NotFound, Overloaded
from evenmesh_evaluator.statements.codec import Draft
from evenmesh_evaluator.statements.recent import KEPT_S, MOST_UNDER_WAY, RecentStatements
from tests.support.clock import Clock

EMPTY = Draft((b"", b"", b""))
OTHER = Draft((b"", b'"minAsks":1', b""))


class Work:
    """Counts how often it is done, and ends when it may."""

    def __init__(self, result: Draft | None = EMPTY, *, begun: bool = True) -> None:
        self.count = 0
        self.may_end = asyncio.Event()
        self._result = result
        if begun:
            self.may_end.set()

    async def __call__(self) -> Draft | None:
        self.count += 1
        await self.may_end.wait()
        return self._result


@pytest.mark.parametrize("result", [EMPTY, None])
async def test_a_statement_is_computed_once_in_a_while(result: Draft | None) -> None:
    clock = Clock(100.0)
    recent, work = RecentStatements(clock), Work(result)
    for _ in range(5):
        assert await recent.get("acme", "p", work) is result
    assert work.count == 1
    clock.now += KEPT_S
    await recent.get("acme", "p", work)
    assert work.count == 2


async def test_tenants_and_keys_have_their_own() -> None:
    recent, first, second, third = RecentStatements(), Work(), Work(OTHER), Work(None)
    assert await recent.get("acme", "p", first) == EMPTY
    assert await recent.get("other", "p", second) == OTHER
    assert await recent.get("acme", "q", third) is None
    assert (first.count, second.count, third.count) == (1, 1, 1)


async def test_readers_at_the_same_time_wait_for_one_and_one_that_hangs_up_ends_nothing() -> None:
    recent, work = RecentStatements(), Work(begun=False)
    readers = [asyncio.create_task(recent.get("acme", "p", work)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    await asyncio.sleep(0)
    work.may_end.set()
    assert await asyncio.gather(*readers[1:]) == [EMPTY, EMPTY]
    assert work.count == 1


async def test_a_failure_is_not_kept() -> None:
    recent, work = RecentStatements(), Work()

    async def fails() -> Draft:
        raise NotFound("provider", "the store is gone")

    for _ in range(2):
        with pytest.raises(NotFound):
            await recent.get("acme", "p", fails)
    assert await recent.get("acme", "p", work) == EMPTY


async def test_who_has_more_time_does_not_fail_with_the_first_reader() -> None:
    recent, may_end, ends = RecentStatements(), asyncio.Event(), iter([True, False])
    left_s: list[float] = []

    async def compute() -> Draft:
        left_s.append(deadline.current().remaining())
        await may_end.wait()
        if next(ends):
            raise DeadlineExceeded("no place at the database came free in time")
        return EMPTY

    async def read(seconds: float) -> Draft | None:
        deadline.enter(deadline.Deadline.after(seconds))
        return await recent.get("acme", "p", compute)

    readers = [asyncio.create_task(read(seconds)) for seconds in (1000, 3000, 3000)]
    await asyncio.sleep(0)
    may_end.set()
    first, *others = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(first, DeadlineExceeded)
    assert others == [EMPTY, EMPTY]
    assert [seconds > 1000 for seconds in left_s] == [False, True]


async def test_a_tenant_with_too_many_waits_and_no_other_does() -> None:
    recent, work = RecentStatements(), Work(begun=False)
    readers = [asyncio.create_task(recent.get("acme", str(n), work)) for n in range(MOST_UNDER_WAY)]
    await asyncio.sleep(0)
    shared = asyncio.create_task(recent.get("acme", "0", work))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="ask again later") as caught:
        await recent.get("acme", "more", work)
    assert caught.value.retry_after_s
    assert await recent.get("other", "more", Work()) == EMPTY
    work.may_end.set()
    assert await asyncio.gather(*readers, shared) == [EMPTY] * (MOST_UNDER_WAY + 1)
    assert await recent.get("acme", "more", Work()) == EMPTY
