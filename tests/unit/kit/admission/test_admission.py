"""Admission control by work."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from dataclasses import replace

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh.wire import deadline
from evenmesh.wire.errors import MeshError, Overloaded
from evenmesh_kit.admission import metering
from evenmesh_kit.admission.limits import TenantLimits
from evenmesh_kit.admission.metering import Meter
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import ANYONE, Caller
from tests.support.clock import Clock


def test_work_is_counted_while_the_block_runs() -> None:
    admission = Admission(10, "pairs")
    with admission.admit(4), admission.admit(6):
        assert admission.in_flight == 10
    assert (admission.in_flight, admission.capacity) == (0, 10)


def test_what_does_not_fit_is_refused_at_once() -> None:
    admission = Admission(10, "pairs")
    with admission.admit(8):
        with (
            pytest.raises(Overloaded, match="busy: 3 pairs do not fit now") as refused,
            admission.admit(3),
        ):
            pytest.fail("was admitted")
        assert refused.value.retry_after_s == 1.0  # nothing has been measured yet
        with admission.admit(2):
            assert admission.in_flight == 10
    assert admission.in_flight == 0


def test_a_request_over_the_capacity_is_refused_with_what_would_fit() -> None:
    admission = Admission(10, "pairs", queue_s=60.0)
    with pytest.raises(MeshError, match="is 11 pairs; at most 10 pairs fit") as refused, admission.admit(11):
        pytest.fail("was admitted")
    error = refused.value
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVER_CAPACITY")
    assert error.retry_after_s is None, "a retry does not help"
    with admission.admit(10):
        assert (admission.in_flight, admission.refused) == (10, {"OVER_CAPACITY": 1})


async def test_a_request_over_the_capacity_does_not_wait_for_an_idle_service() -> None:
    admission = Admission(10, "pairs", queue_s=60.0)
    with admission.admit(1), pytest.raises(MeshError, match="at most 10 pairs fit"):
        async with admission.admit(11):
            pytest.fail("was admitted")
    assert (admission.in_flight, admission.waiting) == (0, 0)


async def test_a_request_that_grows_waits_for_nobody() -> None:
    """It would wait behind those that wait for what it holds itself."""
    admission = Admission(10, "pairs", queue_s=60.0)
    with admission.admit(6):
        waiting = asyncio.create_task(admission.enter_in_turn(5, 60.0))
        await asyncio.sleep(0)
        with admission.grow(0), admission.grow(3):
            assert (admission.in_flight, admission.waiting) == (9, 5)
            with pytest.raises(Overloaded, match="2 pairs do not fit now"), admission.grow(2):
                pytest.fail("grew")
    assert admission.in_flight == 5
    admission.leave(5, await waiting)
    assert (admission.in_flight, admission.waiting) == (0, 0)


async def test_one_tenant_leaves_room_for_the_others() -> None:
    queue = Queue(8, share=0.75)
    for _ in range(8):
        await queue.ask("greedy")
    assert queue.began == ["greedy"] * 6
    # Two of the greedy one wait for its share, and hold nobody up.
    await queue.ask("polite", 2)
    assert queue.began == [*["greedy"] * 6, "polite"]
    await queue.let_one_go()
    assert queue.began[7:] == ["greedy"]
    too_large = await queue.ask("greedy", 7)
    assert isinstance(too_large.exception(), MeshError)
    await queue.close()
    assert (queue.admission.in_flight, queue.admission.waiting) == (0, 0)


async def test_a_refusal_tells_whether_the_share_of_the_tenant_is_full_or_the_service() -> None:
    queue = Queue(8, queue_s=0.0, share=0.75)
    await queue.ask("greedy", 6)
    mine = (await queue.ask("greedy")).exception()
    await queue.ask("polite", 2)
    others = (await queue.ask("third")).exception()
    assert isinstance(mine, Overloaded)
    assert isinstance(others, Overloaded)
    assert (mine.reason, others.reason) == ("SHARE_FULL", "OVERLOADED")
    assert str(mine).startswith("the tenant has 6 of its 6 answers in flight: 1 answers do not fit now")
    assert queue.admission.refused == {"SHARE_FULL": 1, "OVERLOADED": 1}
    await queue.close()


async def test_what_waits_behind_work_that_the_share_has_no_room_for_is_refused_for_the_share() -> None:
    queue = Queue(8, queue_s=1.0, share=0.75)
    await queue.ask("greedy", 5)
    await queue.ask("greedy", 6)
    refused = (await queue.ask("greedy", 3)).exception()  # the capacity holds 8 that wait
    assert isinstance(refused, Overloaded)
    assert refused.reason == "SHARE_FULL"
    await queue.close()


async def test_the_delay_of_a_full_share_is_what_the_tenant_has_too_much() -> None:
    clock = Clock()
    queue = Queue(100, queue_s=0.0, share=0.5, clock=clock)
    for _ in range(20):  # 50 answers in 0.5 s: 100 a second
        await queue.ask("greedy", 50)
        clock.now += 0.5
        await queue.let_one_go()
    await queue.ask("greedy", 50)
    refused = (await queue.ask("greedy", 40)).exception()
    assert isinstance(refused, Overloaded)
    assert refused.retry_after_s == pytest.approx(0.40, abs=0.02)
    await queue.close()


async def test_without_authentication_the_capacity_is_everybodys() -> None:
    admission = Admission(8, "answers", share=0.25)
    with admission.admit(8):
        assert admission.in_flight == 8
        with pytest.raises(Overloaded) as refused, admission.admit(1):
            pytest.fail("was admitted")
    assert refused.value.reason == "OVERLOADED"


async def test_a_tenant_that_a_service_names_takes_nothing_from_callers_without_authentication() -> None:
    admission = Admission(8, "answers", queue_s=60.0, share=0.5)
    began: list[str] = []

    async def ask(caller: Caller, work: int, name: str) -> None:
        callers.enter(caller)
        async with admission.admit(work):
            began.append(name)

    async with asyncio.timeout(30), asyncio.TaskGroup() as asking:
        with admission.admit(8):
            asking.create_task(ask(ANYONE, 6, "anyone"))  # more than the share of a tenant
            await asyncio.sleep(0)
            asking.create_task(ask(replace(ANYONE, tenant=ANYONE.tenant), 3, "default"))
            await asyncio.sleep(0)
            assert admission.waiting == 9
    assert sorted(began) == ["anyone", "default"]


async def test_a_request_may_wait_longer_than_others_do() -> None:
    admission = Admission(1, "answers", queue_s=0.0)
    began = asyncio.Event()

    async def patient() -> None:
        async with admission.admit(1, queue_s=math.inf):
            began.set()

    with admission.admit(1):
        waiting = asyncio.create_task(patient())
        await asyncio.sleep(0.01)
        assert admission.waiting == 1
    await waiting
    assert began.is_set()


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
        with pytest.raises(Overloaded) as refused, admission.admit(100):
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
def test_never_more_than_the_capacity(capacity: int, works: list[int], random: object) -> None:
    admission, held = Admission(capacity, "pairs", clock=Clock()), []
    for work in works:
        stack = ExitStack()
        before = admission.in_flight
        if work > capacity:
            with pytest.raises(MeshError, match=f"at most {capacity} pairs fit"):
                stack.enter_context(admission.admit(work))
        elif before + work > capacity:
            with pytest.raises(Overloaded) as refused:
                stack.enter_context(admission.admit(work))
            assert refused.value.retry_after_s is not None
            assert 0.05 <= refused.value.retry_after_s <= 30
        else:
            stack.enter_context(admission.admit(work))
            held.append((stack, work))
            assert admission.in_flight <= capacity
        if held and random.random() < 0.5:  # type: ignore[attr-defined]
            held.pop(random.randrange(len(held)))[0].close()  # type: ignore[attr-defined]
        assert admission.in_flight == sum(work for _, work in held)


@pytest.mark.parametrize(("capacity", "work"), [(0, 1), (1, -1)])
def test_nonsense_is_refused(capacity: int, work: int) -> None:
    with pytest.raises(ValueError, match="must"), Admission(capacity, "pairs").admit(work):
        pytest.fail("was admitted")


class Queue:
    """An admission with requests that stay until they are let go, and the order in which they began."""

    def __init__(
        self, capacity: int, *, queue_s: float = 60.0, share: float = 1.0, clock: Clock | None = None
    ) -> None:
        self.admission = Admission(capacity, "answers", queue_s=queue_s, share=share, clock=clock or Clock())
        self.began: list[str] = []
        self._running: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, tenant: str, work: int = 1, *, weight: float = 1.0) -> asyncio.Task[None]:
        """A request of a tenant, which has come to the queue."""

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
    queue = Queue(2)
    for _ in range(4):
        await queue.ask("flood")
    assert queue.began == ["flood"] * 2
    await queue.ask("polite")
    # Start tags: the flood's third at 2, after two units; the polite one's at 1, the present.
    await queue.let_one_go()
    assert queue.began == ["flood", "flood", "polite"]
    await queue.let_one_go()
    await queue.ask("polite")
    await queue.let_one_go()
    await queue.let_one_go()
    assert sorted(queue.began[3:]) == ["flood", "flood", "polite"]
    await queue.close()
    assert (queue.admission.in_flight, queue.admission.waiting) == (0, 0)


async def test_tenants_that_have_gone_are_forgotten_and_weights_are_those_of_now() -> None:
    queue = Queue(1)
    await queue.ask("busy")  # the queue is never idle
    for number in range(50):
        await queue.ask(f"guest {number}")
        await queue.ask("busy", weight=2.0)
        await queue.let_one_go()
        await queue.let_one_go()
    assert len(queue.admission._queues) <= 2
    assert queue.admission._queues["busy"].weight == 2.0
    await queue.close()


async def test_weights_are_shares() -> None:
    queue = Queue(6)
    await queue.ask("other", 6)
    for _ in range(6):
        await queue.ask("one")
        await queue.ask("two", weight=2.0)
    await queue.let_one_go()
    # Start tags: one at 0, 1, 2, ...; two at 0, 1/2, 1, 3/2, 2, ...: below 2 are two and four.
    assert (queue.began.count("one"), queue.began.count("two")) == (2, 4)
    await queue.close()


async def test_large_requests_wait_for_room_and_are_not_passed_by_later_ones() -> None:
    queue = Queue(4)
    await queue.ask("a", 2)
    await queue.ask("a", 2)
    await queue.ask("large", 4)
    await queue.ask("small", 1)
    await queue.let_one_go()
    assert queue.began == ["a", "a"]  # two are free; the large one is first and needs four
    await queue.let_one_go()
    assert queue.began == ["a", "a", "large"]
    await queue.close()
    assert queue.began[3:] == ["small"]


async def test_who_gives_up_costs_nothing_and_holds_nobody_up() -> None:
    queue = Queue(4)
    await queue.ask("a", 3)
    large = await queue.ask("large", 4)
    await queue.ask("small", 1)
    assert queue.began == ["a"]
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.began == ["a", "small"]
    assert (queue.admission.in_flight, queue.admission.waiting) == (4, 0)
    # Nothing was charged: large is as far as anyone who has just come.
    await queue.ask("a", 4)
    await queue.ask("large", 4)
    await queue.let_one_go()
    await queue.let_one_go()
    assert queue.began == ["a", "small", "large"]
    await queue.close()


async def test_a_turn_that_comes_as_its_request_is_cancelled_is_given_back() -> None:
    queue = Queue(1)
    await queue.ask("a")
    second = await queue.ask("b")
    await queue.ask("c")
    queue._running.pop(0).set()
    await asyncio.sleep(0)  # a leaves and calls b in
    second.cancel()
    for _ in range(6):
        await asyncio.sleep(0)
    assert (queue.began, queue.admission.in_flight) == (["a", "c"], 1)
    await queue.close()


async def test_the_wait_for_a_turn_is_bounded() -> None:
    admission = Admission(1, "answers", queue_s=0.01)
    with admission.admit(1), pytest.raises(Overloaded, match="busy: 1 answers do not fit now") as refused:
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
    queue = Queue(10, queue_s=2.0, clock=clock)
    for _ in range(20):  # 10 answers a second
        with queue.admission.admit(10):
            clock.now += 1.0
    await queue.ask("flood", 10)
    await queue.ask("flood", 10)  # the first of a tenant may always wait
    third = await queue.ask("flood", 1)
    # It would be the eleventh unit in a line of at most ten.
    assert isinstance(third.exception(), Overloaded)
    await queue.ask("polite", 5)
    # Its second: 5 of its own and as much of the flood's are before it, and 10 - (10 - 5) have to leave:
    # (10 + 5) / 10 per second = 1.5 s, less than 2.
    fits = await queue.ask("polite", 5)
    # Its third: 10 of its own, 10 of the flood's, and 5: 2.5 s. But the line is full anyway at 10.
    refused = await queue.ask("polite", 5)
    assert (fits.done(), isinstance(refused.exception(), Overloaded)) == (False, True)
    assert queue.admission.waiting == 10 + 5 + 5
    await queue.close()


@pytest.mark.parametrize(("queue_s", "waits"), [(1.4, False), (1.6, True)])
async def test_the_expected_wait_counts_the_turns_of_others(queue_s: float, waits: bool) -> None:
    clock = Clock()
    queue = Queue(10, queue_s=queue_s, clock=clock)
    for _ in range(20):  # 10 answers a second
        with queue.admission.admit(10):
            clock.now += 1.0
    await queue.ask("flood", 10)
    await queue.ask("flood", 10)
    await queue.ask("polite", 5)
    second = await queue.ask("polite", 5)  # (5 + 5 + 5) / 10 s, see above
    assert second.done() is not waits
    await queue.close()


def test_who_does_not_wait_does_not_pass_those_who_do() -> None:
    async def run() -> None:
        queue = Queue(2)
        await queue.ask("a", 1)
        await queue.ask("b", 2)
        with pytest.raises(Overloaded), queue.admission.admit(1):
            pytest.fail("was admitted")
        await queue.close()

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
        queue = Queue(capacity)
        await queue.ask("other", capacity)
        begun = {"f": 0.0, "g": 0.0}
        left: dict[str, list[int]] = {"f": [], "g": []}
        for name, works, share in (("f", first, weight), ("g", second, 1.0)):
            for work in works:
                if not (await queue.ask(name, work, weight=share)).done():  # or it does not fit the line
                    left[name].append(work)
        seen = len(queue.began)
        bound = max(first) / weight + max(second)
        while queue._running:
            await queue.let_one_go()
            for name in queue.began[seen:]:
                begun[name] += left[name].pop(0) / (weight if name == "f" else 1.0)
                if left["f"] and left["g"]:
                    assert abs(begun["f"] - begun["g"]) <= bound + 1e-9
            seen = len(queue.began)
        assert left == {"f": [], "g": []}
        await queue.close()

    asyncio.run(run())
