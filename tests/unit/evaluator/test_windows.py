"""Buckets of time: where an observation counts, and what becomes of a bucket as time moves on."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenmesh_evaluator.domain import Window
from evenmesh_evaluator.reports.windows import BASE, Bucket, Span, begins_us, bucket, current, minute

MINUTE_US = 60 * 10**6
NOW = 30_000_000 * MINUTE_US + 17  # minute 30,000,000: hour 500,000, on the hour
HOURS = 500_000

_TIMES = st.integers(-(10**15), NOW + 10**12)


@pytest.mark.parametrize(
    ("minutes_ago", "expected"),
    [
        (0, Bucket(Span.MINUTE, 30_000_000)),
        (59, Bucket(Span.MINUTE, 29_999_941)),
        (64, Bucket(Span.MINUTE, 29_999_936)),
        (65, Bucket(Span.HOUR, HOURS - 2)),
        (24 * 60, Bucket(Span.HOUR, HOURS - 24)),
        (24 * 60 + 1, BASE),
        (10_000_000, BASE),
    ],
)
def test_an_observation_counts_by_its_age(minutes_ago: int, expected: Bucket) -> None:
    assert bucket(NOW - minutes_ago * MINUTE_US, NOW) == expected


def test_the_future_counts_as_now() -> None:
    assert bucket(NOW + 10 * MINUTE_US, NOW) == Bucket(Span.MINUTE, 30_000_000)


@pytest.mark.parametrize(
    ("window", "minutes"),
    [(Window.HOUR, 59), (Window.DAY, 23 * 60)],  # now is the first minute of its hour
)
def test_a_window_begins_with_a_whole_minute_or_hour(window: Window, minutes: int) -> None:
    assert begins_us(window, NOW) == (30_000_000 - minutes) * MINUTE_US
    assert begins_us(window, NOW + 59 * MINUTE_US) == (
        (30_000_000 if window is Window.HOUR else 30_000_000 - minutes) * MINUTE_US
    )


def test_all_has_no_beginning() -> None:
    assert begins_us(Window.ALL, NOW) is None


@given(time=_TIMES, first=st.integers(NOW, NOW + 10**12), later=st.integers(0, 10**12))
def test_when_a_bucket_is_rolled_up_does_not_matter(time: int, first: int, later: int) -> None:
    # Rolled up at once, or counted late: the same bucket in the end.
    assert current(bucket(min(time, first), first), first + later) == bucket(min(time, first), first + later)


@example(time=1_799_996_400_000_000, later=299_999_983, window=Window.HOUR)
@given(
    time=st.integers(0, NOW), later=st.integers(0, 10**12), window=st.sampled_from([Window.HOUR, Window.DAY])
)
def test_no_bucket_is_partly_in_a_window(time: int, later: int, window: Window) -> None:
    # The oldest and the newest time that a bucket holds are both in the window or both before it.
    begins = begins_us(window, NOW + later)
    assert begins is not None
    span, start = bucket(time, NOW + later)
    if span is Span.BASE:
        assert time < begins
    else:
        width = MINUTE_US if span is Span.MINUTE else 60 * MINUTE_US
        newest = min((start + 1) * width - 1, NOW + later)
        if span is Span.HOUR:
            # An hour holds only its minutes that are too old to be kept apart: 65 are.
            newest = min(newest, (minute(NOW + later) - 64) * MINUTE_US - 1)
        if window is Window.DAY or span is Span.MINUTE:
            assert (start * width >= begins) == (newest >= begins)
        else:
            assert newest < begins
        assert minute(start * width) == start * width // MINUTE_US
