"""What an agent said, query by query: the data of Algorithm 2, and the part of it that is held back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.reranker.domain import Agent, Passage
from services.reranker.feedback.ports import FeedbackStore

PassageKey = tuple[str, str]
"""Collection and id of a passage."""

_PAGE = 1000


@dataclass(slots=True)
class Judged:
    """A query and what its agent said of passages for it.

    Attributes:
        query: the query.
        first: sequence number of the first item about it.
        last: that of the last.
        usefulness: by passage what was said last, [0, 1].
    """

    query: str
    first: int
    last: int
    usefulness: dict[PassageKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heard:
    """All that an agent said, flagged items aside.

    Attributes:
        queries: by the first item about each.
        items: judgements of a passage for a query, what was said twice counted once, [0, inf).
        left_out: of them left out because there are more than may be, the oldest, [0, items].
        upto: sequence number of the last item; 0 without any.
    """

    queries: tuple[Judged, ...]
    items: int
    left_out: int
    upto: int

    @property
    def passages(self) -> list[PassageKey]:
        """The passages spoken of, each once."""
        return list(dict.fromkeys(key for one in self.queries for key in one.usefulness))


@dataclass(frozen=True, slots=True)
class Lesson:
    """A query, passages and how useful each was to the agent, [0, 1]."""

    query: str
    passages: tuple[Passage, ...]
    usefulness: tuple[float, ...]


async def hear(store: FeedbackStore, agent: Agent, *, most_items: int, upto: int | None = None) -> Heard:
    """Reads what an agent said; of what is too much, the oldest queries are left out.

    Args:
        store: where it is.
        agent: who.
        most_items: most items that are kept in memory, [1, inf).
        upto: sequence number of the last item that is read; None reads all.

    Raises:
        Unavailable: the store cannot be read.
    """
    queries: dict[str, Judged] = {}
    items = left_out = last = 0
    while page := await store.page(agent, after=last, limit=_PAGE):
        for one in page:
            if upto is not None and one.sequence > upto:
                return Heard(tuple(queries.values()), items, left_out, last)
            last = one.sequence
            said = one.feedback
            judged = queries.setdefault(said.query, Judged(said.query, one.sequence, one.sequence))
            judged.last = one.sequence
            key = said.collection, said.passage_id
            items += key not in judged.usefulness
            judged.usefulness[key] = said.usefulness
        while items - left_out > most_items and len(queries) > 1:
            left_out += len(queries.pop(next(iter(queries))).usefulness)
    return Heard(tuple(queries.values()), items, left_out, last)


def split(
    queries: Sequence[Judged], *, since: int, share: float, least: int
) -> tuple[Sequence[Judged], Sequence[Judged]]:
    """Queries to train on and, held back from that, the newest of those since the last training.

    What serves saw none of the queries that are held back either, unless the agent asked them before.

    Args:
        queries: by the first item about each.
        since: sequence number that the last training has seen.
        share: of the queries since, (0, 1).
        least: fewest queries held back, as long as half of all remain, [0, inf).
    """
    recent = [one for one in queries if one.last > since]
    count = min(max(math.ceil(share * len(recent)), least), len(recent), len(queries) // 2)
    if count == 0:
        return queries, ()
    held = recent[-count:]
    kept_back = {one.query for one in held}
    return [one for one in queries if one.query not in kept_back], held


def lessons(judged: Sequence[Judged], texts: Mapping[PassageKey, Passage]) -> list[Lesson]:
    """What can be learned from: queries with those of their passages that are still there."""
    found = []
    for one in judged:
        there = [key for key in one.usefulness if key in texts]
        if there:
            found.append(
                Lesson(
                    one.query, tuple(texts[key] for key in there), tuple(one.usefulness[key] for key in there)
                )
            )
    return found
