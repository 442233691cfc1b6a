"""Buckets of time that aggregates are kept in, so that a window is a sum of buckets.

An observation counts in one bucket: of a minute while that may be within the last hour, of an hour while that
may be within the last day, and in the base bucket after that. When time moves on, buckets are merged into
coarser ones; what all of them add up to never changes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from services.evaluator.domain import Window

_MINUTE_US: Final = 60 * 10**6
# Longer than the windows by more than the clocks of evaluators that share a database differ.
_MINUTES_KEPT: Final = 65
_HOURS_KEPT: Final = 25


class Span(IntEnum):
    """How much time a bucket spans."""

    BASE = 0
    HOUR = 1
    MINUTE = 2


class Bucket(NamedTuple):
    """A bucket; ``start`` is in its span's units since 1970 (UTC), 0 for the base bucket."""

    span: Span
    start: int


BASE: Final = Bucket(Span.BASE, 0)
"""All that is older than the windows."""


def minute(time_us: int) -> int:
    """The minute that a time lies in. Minutes since 1970."""
    return time_us // _MINUTE_US


def bucket(observed_at_us: int, now_us: int) -> Bucket:
    """Where an observation counts. What claims to come from the future counts as of now."""
    return current(Bucket(Span.MINUTE, minute(min(observed_at_us, now_us))), now_us)


def current(old: Bucket, now_us: int) -> Bucket:
    """Where a bucket belongs by now: itself, or a coarser one that it should be merged into."""
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
    """When a window begins, None for all of time. Microseconds since 1970."""
    now = minute(now_us)
    if window is Window.HOUR:
        return (now - 59) * _MINUTE_US
    if window is Window.DAY:
        return (now // 60 - 23) * 60 * _MINUTE_US
    return None
