"""Admission control by work."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.admission import Admission
from meshkit.errors import Overloaded


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
