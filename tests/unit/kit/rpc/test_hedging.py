"""Hedged calls: two at most, one answer, and nobody left over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from evenmesh.wire.errors import InvalidField, Unavailable
from evenmesh_kit.rpc.hedging import Hedging

AWAY = Unavailable("X", "away")


@dataclass
class Calls:
    """Calls that end when reported: by number, with a result or an error; those not named hang."""

    ends: dict[int, str | Exception]
    begun: int = 0
    cancelled: list[int] = field(default_factory=list)

    async def __call__(self) -> str:
        number = self.begun
        self.begun += 1
        end = self.ends.get(number)
        try:
            if end is None:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if isinstance(end, Exception):
            raise end
        return str(end)


async def test_off_by_a_delay_of_nothing() -> None:
    calls = Calls({0: "first"})
    assert await Hedging(0.0).first(calls) == "first"
    assert calls.begun == 1


async def test_a_quick_answer_needs_no_second_call() -> None:
    calls, reported = Calls({0: "first"}), list[bool]()
    assert await Hedging(60.0, on_hedge=reported.append).first(calls) == "first"
    assert (calls.begun, reported) == (1, [])


async def test_the_second_answers_and_the_first_is_cancelled() -> None:
    calls, reported = Calls({1: "second"}), list[bool]()
    assert await Hedging(0.01, on_hedge=reported.append).first(calls) == "second"
    assert (calls.begun, calls.cancelled, reported) == (2, [0], [True])


async def test_an_error_is_an_answer() -> None:
    calls = Calls({1: InvalidField("k", "no")})
    with pytest.raises(InvalidField):
        await Hedging(0.01).first(calls)
    assert calls.cancelled == [0]


async def test_who_is_away_does_not_decide_while_the_other_works() -> None:
    hedging, first = Hedging(0.01), asyncio.Event()
    begun = 0

    async def call() -> str:
        nonlocal begun
        begun += 1
        if begun == 2:
            first.set()
            raise AWAY
        await first.wait()
        await asyncio.sleep(0)
        return "first"

    assert await hedging.first(call) == "first"
    calls = Calls({0: AWAY})  # before the hedge: gRPC's own retries have been through
    with pytest.raises(Unavailable):
        await hedging.first(calls)
    assert calls.begun == 1


async def test_hedges_have_a_budget() -> None:
    hedging = Hedging(0.001, share=0.25)
    begun = []
    # One is saved up at first; each call brings a quarter: 1.25 - 1, .5, .75, 1 - 1, .25, ...
    expected = [2, 1, 1, 2, 1, 1, 1, 2]
    for number in expected:
        calls = Calls({1: "second"})
        try:
            async with asyncio.timeout(20 if number == 2 else 0.05):  # one call alone hangs
                await hedging.first(calls)
        except TimeoutError:
            assert calls.cancelled == [0]
        begun.append(calls.begun)
    assert begun == expected


async def test_cancelling_cancels_both() -> None:
    calls = Calls({})
    task = asyncio.create_task(Hedging(0.001).first(calls))
    while calls.begun < 2:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.cancelled == [0, 1]
