"""Open and closed loops, with operations that wait until a test releases them."""

import asyncio
import time

import numpy as np

from evenmesh_studies.load.calls.call import OK, Outcome
from evenmesh_studies.load.calls.clients import merged
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.calls.loops import closed_loop, open_loop

ITEMS = [Item("q1", "one"), Item("q2", "two")]


class Held:
    """Calls that end only once they are let go."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.all_asked = asyncio.Event()
        self.wanted = 0
        self.let_go = asyncio.Event()

    async def __call__(self, item: Item, number: int) -> Outcome:
        self.asked.append((item.question, number))
        if len(self.asked) == self.wanted:
            self.all_asked.set()
        await self.let_go.wait()
        return Outcome(first_s=time.monotonic())


async def test_a_mesh_that_stalls_gets_all_calls_and_their_whole_wait_is_counted() -> None:
    operation = Held()
    operation.wanted = 5
    due = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
    begin = time.monotonic() - 40.0  # the last one is due now
    loop = asyncio.ensure_future(
        open_loop(operation, ITEMS, due, numbers=range(7, 12), begin=begin, stop=asyncio.Event())
    )
    # None has been answered, and yet all are sent: nothing is left out because of the stall.
    await asyncio.wait_for(operation.all_asked.wait(), 30)
    operation.let_go.set()
    found = await loop
    assert operation.asked == [(ITEMS[number % 2].question, number) for number in range(7, 12)]
    assert [call.intended_s for call in found.calls] == due.tolist()
    # All end at about the same time, so whoever was due first waited longest.
    latencies = [call.latency_ms for call in found.calls]
    assert latencies == sorted(latencies, reverse=True)
    assert all(call.outcome.first_s >= call.sent_s for call in found.calls)
    assert not found.interrupted


async def test_a_client_that_is_late_counts_it_as_latency() -> None:
    async def at_once(item: Item, number: int) -> Outcome:
        return Outcome()

    begin = time.monotonic() - 5.0  # the loop begins five seconds late
    found = await open_loop(
        at_once, ITEMS, np.array([0.0]), numbers=range(1), begin=begin, stop=asyncio.Event()
    )
    (call,) = found.calls
    assert call.late_ms >= 5_000
    assert call.latency_ms >= call.late_ms


async def test_callers_wait_for_their_answers() -> None:
    under_way = most = 0

    async def counted(item: Item, number: int) -> Outcome:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return Outcome()

    found = await closed_loop(
        counted,
        ITEMS,
        callers=3,
        seconds=60.0,
        numbers=range(100, 130),
        begin=time.monotonic(),
        stop=asyncio.Event(),
    )
    assert most == 3
    assert len(found.calls) == 30


async def test_what_had_ended_is_kept_when_a_step_is_stopped() -> None:
    stop = asyncio.Event()

    async def first_ends(item: Item, number: int) -> Outcome:
        if number:
            stop.set()
            await asyncio.Event().wait()
        return Outcome(OK)

    found = await closed_loop(
        first_ends, ITEMS, callers=1, seconds=60.0, numbers=range(9), begin=time.monotonic(), stop=stop
    )
    assert found.interrupted
    assert len(found.calls) == 1


async def test_several_clients_are_one_together() -> None:
    async def at_once(item: Item, number: int) -> Outcome:
        return Outcome()

    begin = time.monotonic()
    due = np.array([0.0, 0.001, 0.002, 0.003])
    parts = [
        await open_loop(
            at_once, ITEMS, due[place::2], numbers=range(place, 4, 2), begin=begin, stop=asyncio.Event()
        )
        for place in range(2)
    ]
    found = merged(parts)
    assert [call.intended_s for call in found.calls] == due.tolist()
    assert found.cpu_s == sum(part.cpu_s for part in parts)
