"""An agent's feedback by query: the data of Algorithm 2, and the part of it that is held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_training.ium.result_cache import Candidates

PassageKey = tuple[str, str]
"""Collection and id of a passage."""

Learns = Literal["model", "fusion", "both"]
"""What a round learns: the parameters of the model, how its scores are fused, or both."""

MOST_RANKED: Final = 512
"""Most queries, the newest, that a fusion is chosen by, and that a candidate is compared on."""
_PAGE: Final = 1000
_RERANKED: Final = 20
"""Candidates that an ask without options reranks."""


@dataclass(slots=True)
class QueryFeedback:
    """An agent's feedback on the passages that one query found in a collection.

    Attributes:
        query: the query.
        collection: the collection.
        first: sequence number of the first item.
        last: sequence number of the last item.
        usefulness: the last judgement of each passage by id, [0, 1].
    """

    query: str
    collection: str
    first: int
    last: int
    usefulness: dict[str, float] = field(default_factory=dict)


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
        return list(dict.fromkeys((one.collection, id_) for one in self.queries for id_ in one.usefulness))


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A query, and passages that an agent judged.

    Attributes:
        query: the query.
        passages: the passages.
        usefulness: of each to the agent, [0, 1].
        found: candidates of the query, these passages among them, as an ask fuses their scores; None: what a
            model scores alone orders the passages.
    """

    query: str
    passages: tuple[Passage, ...]
    usefulness: tuple[float, ...]
    found: Candidates | None = None

    @property
    def num_ranked(self) -> int:
        """Number of passages that are ranked for the query."""
        return len(self.passages if self.found is None else self.found.passages)


@dataclass(frozen=True, slots=True)
class RoundData:
    """What a round computes with.

    Attributes:
        examples: what the parameters learn from; empty where they stay.
        choosing: what the fusion is chosen by; empty where it stays. No parameters were trained on it.
        held_out: what a candidate is compared on.
    """

    examples: Sequence[TrainingExample]
    choosing: Sequence[TrainingExample]
    held_out: Sequence[TrainingExample]


async def load_feedback(
    store: SqlFeedbackStore, agent: Agent, *, most_items: int, upto: int | None = None
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
    queries: dict[tuple[str, str], QueryFeedback] = {}
    items = left_out = last = 0
    while page := await store.page(agent, after=last, limit=_PAGE):
        for one in page:
            if upto is not None and one.sequence > upto:
                return FeedbackHistory(tuple(queries.values()), items, left_out, last)
            last = one.sequence
            item = one.feedback
            key = item.query, item.collection
            judged = queries.setdefault(key, QueryFeedback(*key, one.sequence, one.sequence))
            judged.last = one.sequence
            items += item.passage_id not in judged.usefulness
            judged.usefulness[item.passage_id] = item.usefulness
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


def divided(
    queries: Sequence[QueryFeedback],
    *,
    learns: Learns,
    trained: bool,
    since: int,
    share: float,
    least: int,
) -> tuple[Sequence[QueryFeedback], Sequence[QueryFeedback], Sequence[QueryFeedback]]:
    """Return the queries to train parameters on, to choose a fusion by, and to compare on.

    Args:
        queries: by the first item of each.
        learns: what a round learns.
        trained: whether the served parameters were trained on queries up to ``since``, which say nothing then
            of how their scores of other queries are best fused.
        since: see :func:`split`.
        share: see :func:`split`; also of what is left, by which a fusion is chosen where both are learned.
        least: see :func:`split`.
    """
    rest, held_out = split(queries, since=since, share=share, least=least)
    if learns == "model":
        return rest, (), held_out[-MOST_RANKED:]
    if learns == "fusion":
        unseen = [one for one in rest if one.last > since or not trained]
        return (), unseen[-MOST_RANKED:], held_out[-MOST_RANKED:]
    train, choosing = split(rest, since=since, share=share, least=least)
    return train, choosing[-MOST_RANKED:], held_out[-MOST_RANKED:]


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
        if ids := [id_ for id_ in one.usefulness if (one.collection, id_) in texts]:
            passages = tuple(texts[one.collection, id_] for id_ in ids)
            found.append(TrainingExample(one.query, passages, tuple(one.usefulness[id_] for id_ in ids)))
    return found


def with_candidates(example: TrainingExample, found: Candidates | None) -> TrainingExample:
    """Return an example with what a first stage found: its best 20, and judged passages below them.

    Judged passages that it did not find get the score of the last one that it found: theirs is not higher.

    Args:
        example: the example.
        found: the candidates, best first; None: none.
    """
    if found is None or not found.passages:
        return example
    judged = {one.id: one for one in example.passages}
    pairs = enumerate(zip(found.passages, found.scores, strict=True))
    kept = [(one, score) for at, (one, score) in pairs if at < _RERANKED or one.id in judged]
    missing = judged.keys() - {one.id for one, _ in kept}
    kept += [(judged[id_], found.scores[-1]) for id_ in judged if id_ in missing]
    return replace(example, found=Candidates(*(tuple(part) for part in zip(*kept, strict=True))))
