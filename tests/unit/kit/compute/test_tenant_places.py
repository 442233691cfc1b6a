"""Places that tenants share: turns, shares, and what is left behind by those who give up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.deadline import NEVER, Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller

LONG = 30


class Requests:
    """Requests of tenants that hold their places until they are ended."""

    def __init__(self, places: TenantPlaces) -> None:
        self._places = places
        self.running: list[tuple[str, asyncio.Event]] = []

    def begin(self, tenant: str, deadline: Deadline = NEVER) -> asyncio.Task[None]:
        """Ask for a place; an empty name is a caller of a service without authentication."""

        async def run() -> None:
            callers.enter(Caller(tenant, tenant, frozenset()) if tenant else callers.ANYONE)
            async with self._places.hold(deadline):
                ended = (tenant, asyncio.Event())
                self.running.append(ended)
                try:
                    await ended[1].wait()
                finally:
                    self.running.remove(ended)

        return asyncio.create_task(run())

    async def settled(self) -> Counter[str]:
        """Return how many requests of each tenant run, when nothing moves any more."""
        for _ in range(8):
            await asyncio.sleep(0)
        return Counter(tenant for tenant, _ in self.running)

    async def end(self, tenant: str) -> Counter[str]:
        """End the tenant's oldest running request."""
        next(event for one, event in self.running if one == tenant).set()
        return await self.settled()


def _places(places: int, share: float = 1.0) -> TenantPlaces:
    return TenantPlaces(places, share=share, where="the server")


async def test_a_tenant_holds_no_more_than_its_share_and_another_begins_at_once() -> None:
    requests = Requests(_places(4, 0.75))
    tasks = [requests.begin("greedy") for _ in range(10)]
    assert await requests.settled() == {"greedy": 3}
    tasks.append(requests.begin("polite"))
    assert await requests.settled() == {"greedy": 3, "polite": 1}
    tasks += [requests.begin("polite") for _ in range(2)]
    assert await requests.end("greedy") == {"greedy": 2, "polite": 2}, "who holds fewest is next"
    assert await requests.end("polite") == {"greedy": 2, "polite": 2}
    for task in tasks:
        task.cancel()


async def test_tenants_that_wait_take_turns() -> None:
    requests = Requests(_places(1))
    tasks = [requests.begin("greedy") for _ in range(5)]
    await requests.settled()
    tasks += [requests.begin("polite") for _ in range(2)]
    order = []
    running = await requests.settled()
    while running:
        order.extend(running)
        running = await requests.end(order[-1])
    assert order == ["greedy", "polite", "greedy", "polite", "greedy", "greedy", "greedy"]
    await asyncio.wait_for(asyncio.gather(*tasks), LONG)


async def test_without_authentication_all_places_are_everybodys() -> None:
    requests = Requests(_places(4, 0.5))
    tasks = [requests.begin("") for _ in range(6)]
    assert (await requests.settled()).total() == 4
    for task in tasks:
        task.cancel()


async def test_one_place_is_not_divided() -> None:
    requests = Requests(_places(1, 0.1))
    task = requests.begin("only")
    assert await requests.settled() == {"only": 1}
    task.cancel()


async def test_a_wait_ends_at_the_deadline_and_holds_nobody_up() -> None:
    requests = Requests(_places(1))
    running = requests.begin("a")
    await requests.settled()
    with pytest.raises(DeadlineExceeded, match="no place at the server came free in time"):
        await requests.begin("a", Deadline.after(0.01))
    after = requests.begin("b")
    assert await requests.end("a") == {"b": 1}
    after.cancel()
    await asyncio.wait([running, after])


async def test_a_deadline_that_passed_takes_no_place() -> None:
    requests = Requests(_places(1))
    with pytest.raises(DeadlineExceeded):
        await requests.begin("a", Deadline.after(-1))
    task = requests.begin("b")
    assert await requests.settled() == {"b": 1}
    task.cancel()


@pytest.mark.parametrize(("places", "share"), [(0, 1.0), (1, 0.0), (1, 1.5)])
def test_bounds_are_checked(places: int, share: float) -> None:
    with pytest.raises(ValueError, match="places="):
        _places(places, share)


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([0.3, 0.5, 0.75, 1.0]))
def test_whatever_comes_and_leaves_bounds_hold_and_no_place_is_lost(
    seed: int, count: int, share: float
) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        requests = Requests(_places(count, share))
        tasks: list[asyncio.Task[None]] = []
        for _ in range(40):
            what = chance.random()
            if what < 0.5:
                tasks.append(requests.begin(chance.choice("abc")))
            elif what < 0.75 and requests.running:
                requests.running[chance.randrange(len(requests.running))][1].set()
            elif tasks:
                chance.choice(tasks).cancel()
            if chance.random() < 0.7:
                await asyncio.sleep(0)
            held = Counter(tenant for tenant, _ in requests.running)
            assert held.total() <= count
            assert all(one <= max(1, int(count * share)) for one in held.values())
        while any(not task.done() for task in tasks):
            for _, ended in requests.running:
                ended.set()
            await asyncio.wait_for(requests.settled(), LONG)
            assert requests.running or all(task.done() for task in tasks), "one waits at a free place"
        tasks = [requests.begin("abcde"[at]) for at in range(count)]
        assert (await requests.settled()).total() == count, "a place was lost"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(scenario())
