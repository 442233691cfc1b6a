"""Aggregates as segments: each commit adds small ones, and segments of a bucket are merged in levels.

Rewriting one aggregate with every commit would cost more and more as it grows. So a commit writes the
aggregate of its own observations, and ``FAN`` segments of a level become one of the next (a log-structured
merge): data is rewritten once per level, and the number of levels grows with the logarithm of the number of
commits. A reader merges the few segments there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_evaluator.backends.sql_tables import SEGMENTS
from evenmesh_evaluator.domain import Window
from evenmesh_evaluator.reports.aggregate import Aggregate
from evenmesh_evaluator.reports.windows import Bucket, Span, begins_us, current, minute
from evenmesh_kit.storage.sql import chunks

FAN: Final = 16
"""Segments of a level and a bucket that become one of the next level."""

_CACHED: Final = 16
"""Most scopes and windows whose sums are cached."""
_CACHED_NAMES: Final = 200_000
"""Most passages in a cached sum; larger ones are read anew."""
_CHUNK: Final = 400
_INSERT: Final = SEGMENTS.insert()
_KEY: Final = and_(
    SEGMENTS.c.scope_id == bindparam("of_scope"), SEGMENTS.c.sequence == bindparam("of_sequence")
)


_Identity = tuple[int, int, int, int]
"""Span, start, level and sequence number of a segment."""


class Parts(NamedTuple):
    """What the aggregate of a scope in a window is the sum of.

    Attributes:
        key: scope and window.
        known: segments that ``sum`` has already.
        sum: their aggregate.
        old: segments that stay the same until the next minute; those of ``known`` are among them.
        states: segments that are not known, packed.
    """

    key: tuple[int, Window]
    known: frozenset[_Identity]
    sum: Aggregate
    old: frozenset[_Identity]
    states: Mapping[_Identity, bytes]


class _Segment(NamedTuple):
    sequence: int
    old: tuple[Bucket, int]


async def add(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write new segments of level 0: scope_id, sequence, span, start and state each."""
    await connection.execute(_INSERT, [{**row, "level": 0} for row in rows])


async def compact(connection: AsyncConnection, scope_ids: Collection[int], now_us: int) -> None:
    """Move segments to the buckets of the current time, and merge ``FAN`` segments of a level into one."""
    columns = SEGMENTS.c
    ids = sorted(scope_ids)
    for part in chunks(ids, _CHUNK):
        found: dict[int, dict[Bucket, dict[int, list[_Segment]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        rows = await connection.execute(
            select(columns.scope_id, columns.sequence, columns.span, columns.start, columns.level)
            .where(columns.scope_id.in_(part))
            .order_by(columns.scope_id, columns.sequence)
        )
        for scope_id, sequence, span, start, level in rows:
            old = Bucket(Span(span), start)
            found[scope_id][current(old, now_us)][level].append(_Segment(sequence, (old, level)))
        for scope_id, buckets in found.items():
            for bucket, levels in buckets.items():
                await _compact_bucket(connection, scope_id, bucket, levels)


class Reader:
    """Reads the aggregate of a scope, and caches the part that will not change soon.

    A segment never changes under its sequence number, level and bucket. Those of older buckets stay the
    same until the next minute, so their sum is cached.
    """

    def __init__(self) -> None:
        self._sums: OrderedDict[tuple[int, Window], tuple[frozenset[_Identity], Aggregate]] = OrderedDict()

    async def read(self, connection: AsyncConnection, scope_id: int, window: Window, now_us: int) -> Parts:
        """Return the parts of the aggregate of a scope in a window, as the transaction sees them."""
        columns = SEGMENTS.c
        here = columns.scope_id == scope_id
        begins = begins_us(window, now_us)
        if begins is not None:
            here = and_(here, _since(minute(begins)))
        rows = await connection.execute(
            select(columns.span, columns.start, columns.level, columns.sequence).where(here)
        )
        found = {(span, start, level, sequence) for span, start, level, sequence in rows}
        newest = max(found, default=(0, 0, 0, 0))[:2]
        old = frozenset(one for one in found if one[:2] != newest)
        key = (scope_id, window)
        known, sum_ = self._sums.get(key, (frozenset(), Aggregate()))
        if not known <= old:
            known, sum_ = frozenset(), Aggregate()
        states = await _states(connection, scope_id, [one[3] for one in found - known])
        return Parts(key, known, sum_, old, {one: states[one[3]] for one in found - known})

    async def sum(self, parts: Parts) -> Aggregate:
        """Return the sum of parts. Takes seconds for a million names: hold no connection meanwhile."""
        key, known, sum_, old, states = parts
        if old != known:
            sum_ = await asyncio.to_thread(_sum, [sum_], [states[one] for one in old - known])
            self._keep(key, old, sum_)
        elif key in self._sums:
            self._sums.move_to_end(key)
        return await asyncio.to_thread(_sum, [sum_], [states[one] for one in states.keys() - old])

    def _keep(self, key: tuple[int, Window], old: frozenset[_Identity], sum_: Aggregate) -> None:
        self._sums.pop(key, None)
        if len(sum_.passages.keys) <= _CACHED_NAMES:
            self._sums[key] = old, sum_
        while len(self._sums) > _CACHED:
            self._sums.popitem(last=False)


def _since(first: int) -> ColumnElement[bool]:
    span, start = SEGMENTS.c.span, SEGMENTS.c.start
    # An hour that begins before the window's first minute has older observations.
    return or_(and_(span == Span.MINUTE, start >= first), and_(span == Span.HOUR, start >= -(-first // 60)))


async def _compact_bucket(
    connection: AsyncConnection, scope_id: int, bucket: Bucket, levels: dict[int, list[_Segment]]
) -> None:
    level = 0
    while level <= max(levels):
        piled = levels.get(level, [])
        if len(piled) >= FAN:
            last = await _merge(connection, scope_id, bucket, level + 1, piled)
            levels[level + 1].append(_Segment(last, (bucket, level + 1)))
            del levels[level]
        level += 1
    moved = [
        {"of_scope": scope_id, "of_sequence": one.sequence, "span": bucket.span, "start": bucket.start}
        for level, segments in levels.items()
        for one in segments
        if one.old != (bucket, level)
    ]
    if moved:
        await connection.execute(update(SEGMENTS).where(_KEY), moved)


async def _merge(
    connection: AsyncConnection, scope_id: int, bucket: Bucket, level: int, piled: Sequence[_Segment]
) -> int:
    """Merge segments into the last of them, and return its sequence number."""
    sequences = [one.sequence for one in piled]
    states = await _states(connection, scope_id, sequences)
    state = await asyncio.to_thread(lambda: _sum([], states.values()).pack())
    *others, last = sequences
    gone = and_(SEGMENTS.c.scope_id == scope_id, SEGMENTS.c.sequence.in_(others))
    await connection.execute(delete(SEGMENTS).where(gone))
    await connection.execute(
        update(SEGMENTS).where(_KEY).values(span=bucket.span, start=bucket.start, level=level, state=state),
        {"of_scope": scope_id, "of_sequence": last},
    )
    return last


async def _states(connection: AsyncConnection, scope_id: int, sequences: Sequence[int]) -> dict[int, bytes]:
    columns = SEGMENTS.c
    states: dict[int, bytes] = {}
    for part in chunks(sequences, _CHUNK):
        rows = await connection.execute(
            select(columns.sequence, columns.state).where(
                columns.scope_id == scope_id, columns.sequence.in_(part)
            )
        )
        states.update((sequence, state) for sequence, state in rows)
    return states


def _sum(sums: Sequence[Aggregate], states: Iterable[bytes]) -> Aggregate:
    return Aggregate.merged([*sums, *map(Aggregate.unpack, states)])
