"""An agent's feedback by query: the data of Algorithm 2, and the part of it that is held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.feedback.ports import FeedbackStore

PassageKey = tuple[str, str]
"""Collection and id of a passage."""

_PAGE = 1000


@dataclass(slots=True)
class QueryFeedback:
    """An agent's feedback on the passages of one query.

    Attributes:
        query: the query.
        first: sequence number of the first item.
        last: sequence number of the last item.
        usefulness: the last judgement of each passage, [0, 1].
    """

    query: str
    first: int
    last: int
    usefulness: dict[PassageKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeedbackHistory:
    """All feedback of an agent, without flagged items.

    Attributes:
        queries: by the first item of each.
        items: distinct pairs of query and passage, [0, inf).
        left_out: number of the oldest items left out because there are too many, [0, items].
        upto: sequence number of the last item; 0 without any.
    """

    queries: tuple[QueryFeedback, ...]
    items: int
    left_out: int
    upto: int

    @property
    def passages(self) -> list[PassageKey]:
        """The judged passages, each once."""
        return list(dict.fromkeys(key for one in self.queries for key in one.usefulness))


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A query, passages, and the usefulness of each to the agent, [0, 1]."""

    query: str
    passages: tuple[Passage, ...]
    usefulness: tuple[float, ...]


async def load_feedback(
    store: FeedbackStore, agent: Agent, *, most_items: int, upto: int | None = None
) -> FeedbackHistory:
    """Read an agent's feedback; leave out the oldest queries if there is too much.

    Args:
        store: keeps the feedback.
        agent: the agent.
        most_items: most items kept in memory, [1, inf).
        upto: sequence number of the last item to read; None reads all.

    Raises:
        Unavailable: the store cannot be read.
    """
    queries: dict[str, QueryFeedback] = {}
    items = left_out = last = 0
    while page := await store.page(agent, after=last, limit=_PAGE):
        for one in page:
            if upto is not None and one.sequence > upto:
                return FeedbackHistory(tuple(queries.values()), items, left_out, last)
            last = one.sequence
            item = one.feedback
            judged = queries.setdefault(item.query, QueryFeedback(item.query, one.sequence, one.sequence))
            judged.last = one.sequence
            key = item.collection, item.passage_id
            items += key not in judged.usefulness
            judged.usefulness[key] = item.usefulness
        while items - left_out > most_items and len(queries) > 1:
            left_out += len(queries.pop(next(iter(queries))).usefulness)
    return FeedbackHistory(tuple(queries.values()), items, left_out, last)


def split(
    queries: Sequence[QueryFeedback], *, since: int, share: float, least: int
) -> tuple[Sequence[QueryFeedback], Sequence[QueryFeedback]]:
    """Return the queries to train on, and those held out: the newest since the last training.

    The served parameters were not trained on held-out queries either, unless the agent asked them before.

    Args:
        queries: by the first item of each.
        since: sequence number up to which the last training read.
        share: share of the queries since then that is held out, (0, 1).
        least: fewest queries held out whose passages are not all equally useful, which alone can decide, as
            long as half of all remain, [0, inf).
    """
    recent = [one for one in queries if one.last > since]
    decide = [len(set(one.usefulness.values())) > 1 for one in recent]
    wanted = max(math.ceil(share * len(recent)), held_out_for(decide, least))
    count = min(wanted, len(recent), len(queries) // 2)
    if count == 0:
        return queries, ()
    held_out = recent[-count:]
    names = {one.query for one in held_out}
    return [one for one in queries if one.query not in names], held_out


def held_out_for(decide: Sequence[bool], least: int) -> int:
    """Return how many of the newest queries hold ``least`` that can decide; all of them if they have fewer.

    Args:
        decide: whether each query can decide, oldest first.
        least: how many are wanted, [0, inf).
    """
    found = 0
    for count, decides in enumerate(reversed(decide)):
        if found >= least:
            return count
        found += decides
    return len(decide)


def training_examples(
    judged: Sequence[QueryFeedback], texts: Mapping[PassageKey, Passage]
) -> list[TrainingExample]:
    """Return an example of each query that has passages left, with these passages."""
    found = []
    for one in judged:
        if keys := [key for key in one.usefulness if key in texts]:
            passages = tuple(texts[key] for key in keys)
            found.append(TrainingExample(one.query, passages, tuple(one.usefulness[key] for key in keys)))
    return found
