"""A bucket that fills at a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_kit.admission.token_bucket import TokenBucket
from tests.support.clock import Clock


def test_it_begins_full_and_fills_at_its_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3.0, clock=clock)
    assert [bucket.take() for _ in range(3)] == [0.0] * 3
    assert bucket.take() == pytest.approx(1 / 2)
    clock.now += 0.25  # half a token
    assert bucket.take() == pytest.approx((1 - 0.25 * 2) / 2)
    clock.now += 0.25
    assert bucket.take() == 0.0
    clock.now += 100  # no more than its size
    assert [bucket.take() for _ in range(3)] == [0.0] * 3
    assert bucket.take() > 0


def test_what_is_owed_comes_back_first() -> None:
    clock = Clock()
    bucket = TokenBucket(10.0, 100.0, clock=clock)
    bucket.spend(250)
    assert bucket.wait_s() == pytest.approx((250 - 100 + 1) / 10)
    clock.now += 15.1
    assert bucket.wait_s() == pytest.approx(0.0, abs=1e-9)


def test_more_than_the_size_waits_until_it_is_full() -> None:
    clock = Clock()
    bucket = TokenBucket(1.0, 2.0, clock=clock)
    assert bucket.take(5) == 0.0  # it is full: better now than never
    assert bucket.take(5) == pytest.approx(5.0)  # from 2 - 5 up to 2


@given(
    st.floats(0.1, 50), st.floats(1, 50), st.lists(st.tuples(st.floats(0, 3), st.integers(1, 3)), max_size=60)
)
def test_never_more_than_the_size_and_what_came(
    per_s: float, size: float, events: list[tuple[float, int]]
) -> None:
    clock = Clock()
    bucket, taken = TokenBucket(per_s, size, clock=clock), 0.0
    for pause, tokens in events:
        clock.now += pause
        if tokens <= size and bucket.take(tokens) == 0.0:
            taken += tokens
        assert taken <= size + (clock.now - 1000.0) * per_s + 1e-6


@pytest.mark.parametrize(("per_s", "size"), [(0, 1), (1, 0), (-1, 1)])
def test_nonsense_is_refused(per_s: float, size: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        TokenBucket(per_s, size)
