"""Micro-batching: each caller its own result, whoever else is in the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh.wire import deadline
from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.batching import MicroBatcher
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from tests.support.waiting import until

LONG = 3600.0


class Doubler:
    """Doubles numbers, fails on negative ones, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.running = 0
        self.go: asyncio.Event | None = None

    async def __call__(self, items: Sequence[int]) -> list[int | BaseException]:
        assert not self.running, "two batches at once"
        self.running += 1
        self.batches.append(list(items))
        try:
            if self.go is not None:
                await self.go.wait()
            else:
                await asyncio.sleep(0)
            return [2 * item if item >= 0 else ValueError(item) for item in items]
        finally:
            self.running -= 1


async def test_a_full_batch_starts_at_once() -> None:
    doubler = Doubler()
    batcher = MicroBatcher(doubler, max_size=3, max_delay_s=LONG)
    async with asyncio.timeout(10):
        assert await asyncio.gather(*map(batcher.submit, [1, 2, 3])) == [2, 4, 6]
    assert doubler.batches == [[1, 2, 3]]


async def test_a_batch_that_does_not_fill_starts_after_the_delay() -> None:
    doubler = Doubler()
    batcher = MicroBatcher(doubler, max_size=100, max_delay_s=0.05)
    began = asyncio.get_running_loop().time()
    assert await asyncio.gather(*map(batcher.submit, [1, 2])) == [2, 4]
    assert asyncio.get_running_loop().time() - began >= 0.05
    assert doubler.batches == [[1, 2]]


async def test_what_arrives_during_a_batch_makes_the_next() -> None:
    doubler = Doubler()
    doubler.go = asyncio.Event()
    batcher = MicroBatcher(doubler, max_size=2, max_delay_s=0)
    tasks = [asyncio.create_task(batcher.submit(0))]
    while not doubler.batches:
        await asyncio.sleep(0)
    tasks += [asyncio.create_task(batcher.submit(item)) for item in (1, 2, 3)]
    await asyncio.sleep(0)
    doubler.go.set()
    assert await asyncio.gather(*tasks) == [0, 2, 4, 6]
    assert doubler.batches == [[0], [1, 2], [3]]


async def test_an_items_failure_is_its_own() -> None:
    batcher = MicroBatcher(Doubler(), max_size=3, max_delay_s=LONG)
    first, second, third = await asyncio.gather(*map(batcher.submit, [1, -2, 3]), return_exceptions=True)
    assert (first, third) == (2, 6)
    assert isinstance(second, ValueError)


async def test_a_batchs_failure_is_everyones_and_the_next_batch_runs() -> None:
    calls = 0

    async def fails_once(items: Sequence[int]) -> Sequence[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no device")
        return items

    batcher: MicroBatcher[int, int] = MicroBatcher(fails_once, max_size=2, max_delay_s=LONG)
    failed = await asyncio.gather(*map(batcher.submit, [1, 2]), return_exceptions=True)
    assert [type(error) for error in failed] == [OSError, OSError]
    assert await asyncio.gather(*map(batcher.submit, [3, 4])) == [3, 4]


async def test_a_batch_with_the_wrong_number_of_results_fails() -> None:
    async def loses_one(items: Sequence[int]) -> Sequence[int]:
        return items[1:]

    batcher: MicroBatcher[int, int] = MicroBatcher(loses_one, max_size=2, max_delay_s=LONG)
    failed = await asyncio.gather(*map(batcher.submit, [1, 2]), return_exceptions=True)
    assert [type(error) for error in failed] == [RuntimeError, RuntimeError]


async def test_batches_are_limited_by_cost_and_an_oversized_item_runs_alone() -> None:
    doubler = Doubler()
    batcher = MicroBatcher(doubler, max_size=100, max_delay_s=0.01, cost=lambda item: item, max_cost=10)
    await asyncio.gather(*map(batcher.submit, [4, 5, 3, 50, 1, 9]))
    assert doubler.batches == [[4, 5], [3], [50], [1, 9]]


async def test_a_cost_that_fills_the_batch_starts_it() -> None:
    batcher = MicroBatcher(Doubler(), max_size=100, max_delay_s=LONG, cost=lambda item: item, max_cost=10)
    async with asyncio.timeout(10):
        assert await asyncio.gather(*map(batcher.submit, [4, 6])) == [8, 12]


async def test_a_tenant_with_many_items_leaves_others_their_turns() -> None:
    doubler = Doubler()
    doubler.go = asyncio.Event()
    batcher = MicroBatcher(doubler, max_size=4, max_delay_s=0)

    async def submit(tenant: str, item: int) -> int:
        callers.enter(Caller(tenant, tenant, frozenset()))
        return await batcher.submit(item)

    tasks = [asyncio.create_task(submit("loud", item)) for item in range(100)]
    while not doubler.batches:
        await asyncio.sleep(0)
    tasks += [asyncio.create_task(submit("quiet", item)) for item in (1000, 1001, 1002)]
    await asyncio.sleep(0)
    doubler.go.set()
    async with asyncio.timeout(60):
        assert sum(await asyncio.gather(*tasks)) == 2 * (sum(range(100)) + 3003)
    # Each has half of a batch for as long as both wait, and in the order of their arrival.
    assert [set(batch) & {1000, 1001, 1002} for batch in doubler.batches[1:3]] == [{1000, 1001}, {1002}]
    assert [item for batch in doubler.batches for item in batch if item < 1000] == list(range(100))


async def test_callers_that_have_gone_are_left_out_of_the_batch() -> None:
    doubler = Doubler()
    batcher = MicroBatcher(doubler, max_size=3, max_delay_s=LONG)
    gone = asyncio.create_task(batcher.submit(1))
    stays = asyncio.create_task(batcher.submit(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert await asyncio.gather(stays, *map(batcher.submit, [3, 4])) == [4, 6, 8]
    assert doubler.batches == [[2, 3, 4]]
    assert gone.cancelled()


async def test_a_caller_that_goes_during_the_batch_takes_nothing_from_the_others() -> None:
    doubler = Doubler()
    doubler.go = asyncio.Event()
    batcher = MicroBatcher(doubler, max_size=2, max_delay_s=LONG)
    gone, stays = (asyncio.create_task(batcher.submit(item)) for item in (1, 2))
    while not doubler.batches:
        await asyncio.sleep(0)
    gone.cancel()
    doubler.go.set()
    assert await stays == 4


async def test_when_all_callers_have_gone_nothing_runs() -> None:
    doubler = Doubler()
    batcher = MicroBatcher(doubler, max_size=2, max_delay_s=0.02)
    task = asyncio.create_task(batcher.submit(1))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(10):
        await batcher.close()
    assert doubler.batches == []


async def test_a_batch_runs_outside_its_callers_contexts() -> None:
    async def tell(items: Sequence[int]) -> Sequence[deadline.Deadline]:
        return [deadline.current()] * len(items)

    batcher: MicroBatcher[int, deadline.Deadline] = MicroBatcher(tell, max_size=1, max_delay_s=LONG)
    deadline.enter(deadline.Deadline.after(1))
    assert await batcher.submit(1) is deadline.NEVER


async def test_closing_runs_what_is_queued_and_takes_no_more() -> None:
    doubler = Doubler()
    batcher = MicroBatcher(doubler, max_size=100, max_delay_s=LONG)
    tasks = [asyncio.create_task(batcher.submit(item)) for item in (1, 2)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await batcher.close()
        assert await asyncio.gather(*tasks) == [2, 4]
        with pytest.raises(Unavailable):
            await batcher.submit(3)
        await batcher.close()


async def test_an_idle_batcher_holds_no_task() -> None:
    batcher = MicroBatcher(Doubler(), max_size=1, max_delay_s=LONG)
    before = asyncio.all_tasks()
    await batcher.submit(1)
    await until(lambda: not (asyncio.all_tasks() - before), 10)
    assert await batcher.submit(2) == 4


@settings(deadline=None, max_examples=60)
@given(
    items=st.lists(st.integers(-5, 20), max_size=40),
    gone=st.sets(st.integers(0, 39)),
    yields=st.lists(st.booleans(), min_size=40, max_size=40),
    max_size=st.integers(1, 7),
    max_cost=st.none() | st.integers(1, 25),
)
def test_every_caller_gets_its_own_result_once(
    items: list[int], gone: set[int], yields: list[bool], max_size: int, max_cost: int | None
) -> None:
    async def scenario() -> None:
        doubler = Doubler()
        batcher = MicroBatcher(doubler, max_size=max_size, max_delay_s=0, cost=abs, max_cost=max_cost)
        tasks = []
        for index, item in enumerate(items):
            tasks.append(asyncio.create_task(batcher.submit(item)))
            if index in gone:
                tasks[index].cancel()
            if yields[index]:
                await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for index, (item, result) in enumerate(zip(items, results, strict=True)):
            if index in gone:
                assert isinstance(result, asyncio.CancelledError)
            elif item < 0:
                assert isinstance(result, ValueError)
                assert result.args == (item,)
            else:
                assert result == 2 * item
        ran = [item for batch in doubler.batches for item in batch]
        kept = [item for index, item in enumerate(items) if index not in gone]
        if not gone:
            assert ran == items  # first come, first served
        assert len(kept) <= len(ran) <= len(items)
        for batch in doubler.batches:
            assert len(batch) <= max_size
            assert len(batch) == 1 or max_cost is None or sum(map(abs, batch)) <= max_cost

    asyncio.run(scenario())


@pytest.mark.parametrize(("max_size", "max_delay_s", "max_cost"), [(0, 1, None), (1, -1, None), (1, 1, 0)])
def test_nonsense_is_refused(max_size: int, max_delay_s: float, max_cost: int | None) -> None:
    with pytest.raises(ValueError, match="max_size="):
        MicroBatcher(Doubler(), max_size=max_size, max_delay_s=max_delay_s, max_cost=max_cost)
