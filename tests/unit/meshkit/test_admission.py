"""Admission control by work."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import deadline, metering
from meshkit.admission import Admission
from meshkit.errors import Overloaded
from meshkit.limits import TenantLimits
from meshkit.metering import Meter
from meshkit.security import caller as callers
from meshkit.security.caller import Caller


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_work_is_counted_while_the_block_runs() -> None:
    admission = Admission(10, "pairs")
    with admission.admit(4), admission.admit(6):
        assert admission.in_flight == 10
    assert (admission.in_flight, admission.capacity) == (0, 10)


def test_what_does_not_fit_is_refused_at_once() -> None:
    admission = Admission(10, "pairs")
    with admission.admit(8):
        with (
            pytest.raises(Overloaded, match="8 of 10 pairs are in flight, 3 more do not fit") as refused,
            admission.admit(3),
        ):
            pytest.fail("was admitted")
        assert refused.value.retry_after_s == 1.0  # nothing has been measured yet
        with admission.admit(2):
            assert admission.in_flight == 10
    assert admission.in_flight == 0


def test_a_request_over_the_capacity_runs_alone() -> None:
    admission = Admission(10, "pairs")
    with admission.admit(50):
        assert admission.in_flight == 50
        with pytest.raises(Overloaded), admission.admit(1):
            pytest.fail("was admitted")
    with admission.admit(1), pytest.raises(Overloaded), admission.admit(50):
        pytest.fail("was admitted")


def test_a_failed_block_gives_its_work_back() -> None:
    admission = Admission(10, "pairs")
    with pytest.raises(KeyError), admission.admit(10):
        raise KeyError
    assert admission.in_flight == 0


async def test_a_cancelled_block_gives_its_work_back() -> None:
    admission = Admission(10, "pairs")

    async def hold() -> None:
        with admission.admit(10):
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    assert admission.in_flight == 10
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert admission.in_flight == 0


def test_the_delay_is_the_excess_over_the_throughput() -> None:
    clock = Clock()
    admission = Admission(100, "tokens", clock=clock)
    for _ in range(20):  # 50 tokens in 0.5 s: 100 a second
        with admission.admit(50):
            clock.now += 0.5
        clock.now += 7  # idle time is no measure of throughput
    with admission.admit(100):
        with pytest.raises(Overloaded) as refused, admission.admit(30):
            pytest.fail("was admitted")
        # 30 of the 100 have to leave first: 30 / 100 s.
        assert refused.value.retry_after_s == pytest.approx(0.30, abs=0.02)
        with pytest.raises(Overloaded) as refused, admission.admit(1000):
            pytest.fail("was admitted")
        assert refused.value.retry_after_s == pytest.approx(1.0, abs=0.05)  # all 100 have to leave


def test_the_throughput_follows_what_is_recent() -> None:
    clock = Clock()
    admission = Admission(100, "tokens", clock=clock)
    for seconds in [0.1] * 50 + [10.0] * 20:  # 1000 tokens a second, later 10
        with admission.admit(100):
            clock.now += seconds
    with admission.admit(100), pytest.raises(Overloaded) as refused, admission.admit(100):
        pytest.fail("was admitted")
    assert refused.value.retry_after_s == pytest.approx(10.0, rel=0.3)


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.integers(0, 80), max_size=30), st.randoms(use_true_random=False))
def test_never_more_than_the_capacity_unless_alone(capacity: int, works: list[int], random: object) -> None:
    admission, held = Admission(capacity, "pairs", clock=Clock()), []
    for work in works:
        stack = ExitStack()
        before = admission.in_flight
        if before and before + work > capacity:
            with pytest.raises(Overloaded) as refused:
                stack.enter_context(admission.admit(work))
            assert refused.value.retry_after_s is not None
            assert 0.05 <= refused.value.retry_after_s <= 30
        else:
            stack.enter_context(admission.admit(work))
            held.append((stack, work))
            assert admission.in_flight <= capacity or before == 0
        if held and random.random() < 0.5:  # type: ignore[attr-defined]
            held.pop(random.randrange(len(held)))[0].close()  # type: ignore[attr-defined]
        assert admission.in_flight == sum(work for _, work in held)


@pytest.mark.parametrize(("capacity", "work"), [(0, 1), (1, -1)])
def test_nonsense_is_refused(capacity: int, work: int) -> None:
    with pytest.raises(ValueError, match="must"), Admission(capacity, "pairs").admit(work):
        pytest.fail("was admitted")


class Door:
    """An admission with requests that stay until they are let go, and the order in which they began."""

    def __init__(self, capacity: int, *, queue_s: float = 60.0, clock: Clock | None = None) -> None:
        self.admission = Admission(capacity, "answers", queue_s=queue_s, clock=clock or Clock())
        self.began: list[str] = []
        self._running: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, tenant: str, work: int = 1, *, weight: float = 1.0) -> asyncio.Task[None]:
        """A request of a tenant, which has come to the door."""

        async def hold() -> None:
            callers.enter(Caller(tenant, tenant, frozenset()))
            metering.enter(Meter(tenant, TenantLimits(weight=weight)))
            async with self.admission.admit(work):
                self.began.append(tenant)
                leave = asyncio.Event()
                self._running.append(leave)
                await leave.wait()

        self._tasks.append(asyncio.create_task(hold()))
        await asyncio.sleep(0)
        return self._tasks[-1]

    async def let_one_go(self) -> None:
        """Ends the request that began first, and lets who is next begin."""
        self._running.pop(0).set()
        for _ in range(4):  # the one that ends, the future, the wait for it, the one that begins
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Lets everyone go."""
        while self._running:
            await self.let_one_go()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_a_flooding_tenant_does_not_delay_anothers_turn() -> None:
    door = Door(2)
    for _ in range(4):
        await door.ask("flood")
    assert door.began == ["flood"] * 2
    await door.ask("polite")
    # Start tags: the flood's third at 2, after two units; the polite one's at 1, the present.
    await door.let_one_go()
    assert door.began == ["flood", "flood", "polite"]
    await door.let_one_go()
    await door.ask("polite")
    await door.let_one_go()
    await door.let_one_go()
    assert sorted(door.began[3:]) == ["flood", "flood", "polite"]
    await door.close()
    assert (door.admission.in_flight, door.admission.waiting) == (0, 0)


async def test_tenants_that_have_gone_are_forgotten_and_weights_are_those_of_now() -> None:
    door = Door(1)
    await door.ask("busy")  # the door is never idle
    for number in range(50):
        await door.ask(f"guest {number}")
        await door.ask("busy", weight=2.0)
        await door.let_one_go()
        await door.let_one_go()
    assert len(door.admission._lines) <= 2
    assert door.admission._lines["busy"].weight == 2.0
    await door.close()


async def test_weights_are_shares() -> None:
    door = Door(6)
    await door.ask("other", 6)
    for _ in range(6):
        await door.ask("one")
        await door.ask("two", weight=2.0)
    await door.let_one_go()
    # Start tags: one at 0, 1, 2, ...; two at 0, 1/2, 1, 3/2, 2, ...: below 2 are two and four.
    assert (door.began.count("one"), door.began.count("two")) == (2, 4)
    await door.close()


async def test_large_requests_wait_for_room_and_are_not_passed_by_later_ones() -> None:
    door = Door(4)
    await door.ask("a", 2)
    await door.ask("a", 2)
    await door.ask("large", 4)
    await door.ask("small", 1)
    await door.let_one_go()
    assert door.began == ["a", "a"]  # two are free; the large one is first and needs four
    await door.let_one_go()
    assert door.began == ["a", "a", "large"]
    await door.close()
    assert door.began[3:] == ["small"]


async def test_who_gives_up_costs_nothing_and_holds_nobody_up() -> None:
    door = Door(4)
    await door.ask("a", 3)
    large = await door.ask("large", 4)
    await door.ask("small", 1)
    assert door.began == ["a"]
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert door.began == ["a", "small"]
    assert (door.admission.in_flight, door.admission.waiting) == (4, 0)
    # Nothing was charged: large is as far as anyone who has just come.
    await door.ask("a", 4)
    await door.ask("large", 4)
    await door.let_one_go()
    await door.let_one_go()
    assert door.began == ["a", "small", "large"]
    await door.close()


async def test_a_turn_that_comes_as_its_request_is_cancelled_is_given_back() -> None:
    door = Door(1)
    await door.ask("a")
    second = await door.ask("b")
    await door.ask("c")
    door._running.pop(0).set()
    await asyncio.sleep(0)  # a leaves and calls b in
    second.cancel()
    for _ in range(6):
        await asyncio.sleep(0)
    assert (door.began, door.admission.in_flight) == (["a", "c"], 1)
    await door.close()


async def test_the_wait_at_the_door_is_bounded() -> None:
    admission = Admission(1, "answers", queue_s=0.01)
    with admission.admit(1), pytest.raises(Overloaded, match="1 of 1 answers are in flight") as refused:
        async with admission.admit(1):
            pytest.fail("was admitted")
    assert refused.value.retry_after_s is not None
    assert (admission.in_flight, admission.waiting) == (0, 0)


async def test_nobody_waits_past_the_deadline() -> None:
    admission = Admission(1, "answers", queue_s=3600)
    with admission.admit(1):

        async def late() -> None:
            deadline.enter(deadline.Deadline.after(0.01))
            async with admission.admit(1):
                pytest.fail("was admitted")

        with pytest.raises(Overloaded):
            await asyncio.create_task(late())


async def test_a_line_that_would_take_too_long_is_refused_at_once() -> None:
    clock = Clock()
    door = Door(10, queue_s=2.0, clock=clock)
    for _ in range(20):  # 10 answers a second
        with door.admission.admit(10):
            clock.now += 1.0
    await door.ask("flood", 10)
    await door.ask("flood", 10)  # the first of a tenant may always wait
    third = await door.ask("flood", 1)
    # It would be the eleventh unit in a line of at most ten.
    assert isinstance(third.exception(), Overloaded)
    await door.ask("polite", 5)
    # Its second: 5 of its own and as much of the flood's are before it, and 10 - (10 - 5) have to leave:
    # (10 + 5) / 10 per second = 1.5 s, less than 2.
    fits = await door.ask("polite", 5)
    # Its third: 10 of its own, 10 of the flood's, and 5: 2.5 s. But the line is full anyway at 10.
    refused = await door.ask("polite", 5)
    assert (fits.done(), isinstance(refused.exception(), Overloaded)) == (False, True)
    assert door.admission.waiting == 10 + 5 + 5
    await door.close()


@pytest.mark.parametrize(("queue_s", "waits"), [(1.4, False), (1.6, True)])
async def test_the_expected_wait_counts_the_turns_of_others(queue_s: float, waits: bool) -> None:
    clock = Clock()
    door = Door(10, queue_s=queue_s, clock=clock)
    for _ in range(20):  # 10 answers a second
        with door.admission.admit(10):
            clock.now += 1.0
    await door.ask("flood", 10)
    await door.ask("flood", 10)
    await door.ask("polite", 5)
    second = await door.ask("polite", 5)  # (5 + 5 + 5) / 10 s, see above
    assert second.done() is not waits
    await door.close()


def test_who_does_not_wait_does_not_pass_those_who_do() -> None:
    async def run() -> None:
        door = Door(2)
        await door.ask("a", 1)
        await door.ask("b", 2)
        with pytest.raises(Overloaded), door.admission.admit(1):
            pytest.fail("was admitted")
        await door.close()

    asyncio.run(run())


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_work_begun_is_shared_fairly(
    capacity: int, first: list[int], second: list[int], weight: float
) -> None:
    """Theorem 1 of Goyal, Vin and Cheng: |W_f / w_f - W_g / w_g| <= l_f / w_f + l_g / w_g, both waiting."""

    async def run() -> None:
        door = Door(capacity)
        await door.ask("other", capacity)
        begun = {"f": 0.0, "g": 0.0}
        left: dict[str, list[int]] = {"f": [], "g": []}
        for name, works, share in (("f", first, weight), ("g", second, 1.0)):
            for work in works:
                if not (await door.ask(name, work, weight=share)).done():  # or the line is full
                    left[name].append(work)
        seen = len(door.began)
        bound = max(first) / weight + max(second)
        while door._running:
            await door.let_one_go()
            for name in door.began[seen:]:
                begun[name] += left[name].pop(0) / (weight if name == "f" else 1.0)
                if left["f"] and left["g"]:
                    assert abs(begun["f"] - begun["g"]) <= bound + 1e-9
            seen = len(door.began)
        assert left == {"f": [], "g": []}
        await door.close()

    asyncio.run(run())
