"""A breaker opens for what gives no answers, and for nothing else."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from evenmesh.wire.errors import DeadlineExceeded, Internal, InvalidField, MeshError, Overloaded, Unavailable
from evenmesh_kit.rpc.breaker import Breaker, Circuit, Unanswered
from tests.support.clock import Clock

AWAY = Unanswered("UPSTREAM_UNAVAILABLE", "away")


class Watched:
    """A breaker with a clock of its own and what it reported."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reported: list[Circuit] = []
        self.breaker = Breaker(
            "reranker", failures=3, open_s=2.0, slow_s=5.0, on_change=self.reported.append, clock=self.clock
        )

    def call(self, error: BaseException | None = None, *, took_s: float = 0.1, timeout_s: float = 10) -> str:
        """Makes a call that ends so; what became of it."""
        try:
            with self.breaker.watch(timeout_s):
                self.clock.now += took_s
                if error is not None:
                    raise error
        except MeshError as refused:
            return refused.reason
        except asyncio.CancelledError:
            return "cancelled"
        return "ok"


def test_it_opens_after_failures_in_a_row_and_tells_for_how_long() -> None:
    watched = Watched()
    assert [watched.call(AWAY) for _ in range(2)] == ["UPSTREAM_UNAVAILABLE"] * 2
    assert watched.call() == "ok"  # begins to count anew
    assert [watched.call(AWAY) for _ in range(3)] == ["UPSTREAM_UNAVAILABLE"] * 3
    assert watched.breaker.state is Circuit.OPEN
    watched.clock.now += 0.5
    with (
        pytest.raises(MeshError, match="did not answer 3 times in a row") as refused,
        watched.breaker.watch(1),
    ):
        pytest.fail("was let through")
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.UNAVAILABLE, "CIRCUIT_OPEN")
    assert refused.value.retry_after_s == pytest.approx(2.0 - 0.5)
    assert watched.reported == [Circuit.OPEN]


def test_one_call_sees_whether_it_is_back() -> None:
    watched = Watched()
    for _ in range(3):
        watched.call(AWAY)
    watched.clock.now += 2
    with watched.breaker.watch(1):
        assert watched.breaker.state is Circuit.HALF_OPEN
        assert watched.call() == "CIRCUIT_OPEN"  # one at a time
    assert watched.breaker.state is Circuit.CLOSED
    assert watched.reported == [Circuit.OPEN, Circuit.HALF_OPEN, Circuit.CLOSED]


def test_a_probe_that_fails_opens_it_for_as_long_again() -> None:
    watched = Watched()
    for _ in range(3):
        watched.call(AWAY)
    watched.clock.now += 2
    assert watched.call(AWAY) == "UPSTREAM_UNAVAILABLE"
    watched.clock.now += 1.9
    assert watched.call() == "CIRCUIT_OPEN"
    watched.clock.now += 0.1
    assert watched.call() == "ok"


def test_a_probe_that_its_caller_gave_up_lets_the_next_one_see() -> None:
    watched = Watched()
    for _ in range(3):
        watched.call(AWAY)
    watched.clock.now += 2
    assert watched.call(asyncio.CancelledError()) == "cancelled"
    assert watched.breaker.state is Circuit.OPEN
    assert watched.call() == "ok"


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("WEB_UNAVAILABLE", "the search is away"),
        Overloaded("full", 1.0),
        InvalidField("k", "no"),
        Internal("0"),
    ],
    ids=lambda error: error.reason,
)
def test_what_the_upstream_says_itself_shows_that_it_lives(error: MeshError) -> None:
    watched = Watched()
    for _ in range(2):
        watched.call(AWAY)
    watched.call(error)
    for _ in range(2):
        watched.call(AWAY)
    assert watched.breaker.state is Circuit.CLOSED


@pytest.mark.parametrize(
    ("error", "took_s", "timeout_s", "state"),
    [
        (DeadlineExceeded("late"), 5.0, 5.0, Circuit.OPEN),
        (DeadlineExceeded("late"), 4.9, 4.9, Circuit.CLOSED),  # the caller gave it too little time
        (asyncio.CancelledError(), 6.0, 6.0, Circuit.OPEN),  # the stage's clock was quicker
        (asyncio.CancelledError(), 6.0, 60.0, Circuit.CLOSED),  # the caller has gone
    ],
)
def test_time_counts_only_when_there_was_enough(
    error: BaseException, took_s: float, timeout_s: float, state: Circuit
) -> None:
    watched = Watched()
    for _ in range(3):
        watched.call(error, took_s=took_s, timeout_s=timeout_s)
    assert watched.breaker.state is state


def test_impatience_neither_counts_nor_forgives() -> None:
    watched = Watched()
    for error in (AWAY, AWAY, DeadlineExceeded("late"), AWAY):
        watched.call(error)
    assert watched.breaker.state is Circuit.OPEN


def test_slow_calls_of_one_caller_do_not_open_it_for_one_that_is_answered() -> None:
    watched = Watched()
    for ends in (DeadlineExceeded("late"), asyncio.CancelledError()) * 3:
        with pytest.raises(type(ends)), watched.breaker.watch(10):
            assert watched.call() == "ok"
            watched.clock.now += 10
            raise ends
    assert watched.call() == "ok"
    assert watched.reported == []


def test_a_stream_closes_it_with_its_first_word() -> None:
    watched = Watched()
    for _ in range(3):
        watched.call(AWAY)
    watched.clock.now += 2
    with watched.breaker.watch(60) as answered:
        answered()
        assert watched.breaker.state is Circuit.CLOSED
        assert watched.call() == "ok"  # the others need not wait for its end


def test_a_stream_that_spoke_is_not_held_to_its_time() -> None:
    watched = Watched()
    for _ in range(3):
        with pytest.raises(DeadlineExceeded), watched.breaker.watch(6) as answered:
            answered()
            watched.clock.now += 6
            raise DeadlineExceeded("a long answer")
    assert watched.breaker.state is Circuit.CLOSED
