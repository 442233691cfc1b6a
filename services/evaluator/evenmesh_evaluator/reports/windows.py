"""Time buckets of aggregates: a window is a sum of buckets.

An observation counts in one bucket: a minute's while that may be within the last hour, an hour's while that
may be within the last day, and then the base bucket. As time passes, buckets are merged into coarser ones;
their total never changes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from evenmesh_evaluator.domain import Window

_MINUTE_US: Final = 60 * 10**6
# Longer than the windows by more than the clock skew of evaluators that share a database.
_MINUTES_KEPT: Final = 65
_HOURS_KEPT: Final = 25


class Span(IntEnum):
    """The length of a bucket."""

    BASE = 0
    HOUR = 1
    MINUTE = 2


class Bucket(NamedTuple):
    """A bucket; ``start`` counts units of its span since 1970 (UTC), and is 0 for the base bucket."""

    span: Span
    start: int


BASE: Final = Bucket(Span.BASE, 0)
"""The bucket of everything older than the windows."""


def minute(time_us: int) -> int:
    """Return the minute of a time. Minutes since 1970."""
    return time_us // _MINUTE_US


def bucket(observed_at_us: int, now_us: int) -> Bucket:
    """Return the bucket of an observation; a time in the future counts as now."""
    return current(Bucket(Span.MINUTE, minute(min(observed_at_us, now_us))), now_us)


def current(old: Bucket, now_us: int) -> Bucket:
    """Return the bucket that a bucket belongs to now: itself, or a coarser one to merge it into."""
    now = minute(now_us)
    span, start = old
    if span is Span.MINUTE:
        if start > now - _MINUTES_KEPT:
            return old
        span, start = Span.HOUR, start // 60
    if span is Span.HOUR and start > now // 60 - _HOURS_KEPT:
        return Bucket(Span.HOUR, start)
    return BASE


def begins_us(window: Window, now_us: int) -> int | None:
    """Return when a window begins, None for all of time. Microseconds since 1970."""
    now = minute(now_us)
    if window is Window.HOUR:
        return (now - 59) * _MINUTE_US
    if window is Window.DAY:
        return (now // 60 - 23) * 60 * _MINUTE_US
    return None
