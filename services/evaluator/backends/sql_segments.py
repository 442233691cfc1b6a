"""Aggregates as segments: each commit adds small ones, and those of a bucket are merged as they pile up.

Rewriting one growing aggregate with every commit would cost more the more passages it holds. So a commit
writes what its own observations add up to, and ``FAN`` segments of a level become one of the next (a
log-structured merge): what an observation wrote is written again once a level, and levels grow with the
logarithm of the number of commits. A reader merges the few segments there are.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from services.evaluator.aggregate import Aggregate
from services.evaluator.backends.sql_tables import SEGMENTS
from services.evaluator.domain import Window
from services.evaluator.windows import Bucket, Span, begins_us, current, minute

FAN: Final = 8
"""Segments of a level and a bucket that become one of the next level."""

_CHUNK: Final = 400  # keys per SELECT … IN, below every database's limit of parameters
_KEY: Final = and_(
    SEGMENTS.c.scope_id == bindparam("of_scope"), SEGMENTS.c.sequence == bindparam("of_sequence")
)


class _Segment(NamedTuple):
    sequence: int
    old: tuple[Bucket, int]


async def add(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes new segments of level 0: scope_id, sequence, span, start and state each."""
    await connection.execute(SEGMENTS.insert(), [{**row, "level": 0} for row in rows])


async def tidy(connection: AsyncConnection, scope_ids: Collection[int], now_us: int) -> None:
    """Moves segments to the buckets they belong to by now, and merges those that have piled up."""
    columns = SEGMENTS.c
    ids = sorted(scope_ids)
    for begin in range(0, len(ids), _CHUNK):
        found: dict[int, dict[Bucket, dict[int, list[_Segment]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        rows = await connection.execute(
            select(columns.scope_id, columns.sequence, columns.span, columns.start, columns.level)
            .where(columns.scope_id.in_(ids[begin : begin + _CHUNK]))
            .order_by(columns.scope_id, columns.sequence)
        )
        for scope_id, sequence, span, start, level in rows:
            old = Bucket(Span(span), start)
            found[scope_id][current(old, now_us)][level].append(_Segment(sequence, (old, level)))
        for scope_id, buckets in found.items():
            for bucket, levels in buckets.items():
                await _tidy_bucket(connection, scope_id, bucket, levels)


async def read(connection: AsyncConnection, scope_id: int, window: Window, now_us: int) -> list[bytes]:
    """The packed aggregates of a scope that a window is made of."""
    query = select(SEGMENTS.c.state).where(SEGMENTS.c.scope_id == scope_id)
    begins = begins_us(window, now_us)
    if begins is not None:
        query = query.where(_since(minute(begins)))
    return list((await connection.scalars(query)).all())


def _since(first: int) -> ColumnElement[bool]:
    span, start = SEGMENTS.c.span, SEGMENTS.c.start
    # An hour that begins before the window's first minute would bring what is older.
    return or_(and_(span == Span.MINUTE, start >= first), and_(span == Span.HOUR, start >= -(-first // 60)))


async def _tidy_bucket(
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
    """Merges segments into the last of them, and returns its sequence number."""
    sequences = [one.sequence for one in piled]
    here = and_(SEGMENTS.c.scope_id == scope_id, SEGMENTS.c.sequence.in_(sequences))
    states = (await connection.scalars(select(SEGMENTS.c.state).where(here))).all()
    state = await asyncio.to_thread(merged, states)
    *others, last = sequences
    gone = and_(SEGMENTS.c.scope_id == scope_id, SEGMENTS.c.sequence.in_(others))
    await connection.execute(delete(SEGMENTS).where(gone))
    await connection.execute(
        update(SEGMENTS).where(_KEY).values(span=bucket.span, start=bucket.start, level=level, state=state),
        {"of_scope": scope_id, "of_sequence": last},
    )
    return last


def merged(states: Sequence[bytes]) -> bytes:
    """One packed aggregate of many."""
    return Aggregate.merged([Aggregate.unpack(state) for state in states]).pack()
