"""Rank once, best first, or draw rankings, from a pool or from a whole collection."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from evenmesh_core import group_shares
from evenmesh_core.plackett_luce import (
    Draws,
    draw_from_scores,
    inclusion_probabilities,
    log_weights,
    normalize_scores,
)
from evenmesh_kit.rpc.policies import GroupSharesPolicy, Policy, find_policy
from evenmesh_retriever.domain import Draw, FloatArray, IntArray, Query, Scored, Unranked

_ENGINE: Final = "numba"  # the same rankings as by NumPy, in a third of the time


class Ranked(NamedTuple):
    """A pool, ranked.

    Attributes:
        shown: how many passages of the pool to show.
        rankings: indices into the pool, ``[rankings, k]``.
        log_probabilities: of the rankings, ``[rankings]``; None if they are not drawn.
        inclusion: inclusion probability of each shown passage; None if it is not wanted.
        policy: the policy of a target; None without one, and of an empty pool.
    """

    shown: int
    rankings: IntArray
    log_probabilities: FloatArray | None
    inclusion: FloatArray | None
    policy: Policy | None = None


def ranked(
    query: Query, pool: Scored, k: int, attributes: Callable[[], Sequence[Mapping[str, str]]]
) -> Ranked:
    """Rank a pool once, or draw rankings of it.

    Args:
        query: whether rankings are drawn, and what of them is wanted.
        pool: what was found.
        k: positions of a ranking; fewer passages may exist.
        attributes: gives those of the pool's passages.
    """
    size = len(pool.rows)
    length = min(k, size)
    draw = query.draw
    if draw is None:
        shown = size if query.with_inclusion else length
        # The policy of a deterministic ranking: the first k, surely.
        inclusion = (np.arange(shown) < length).astype(np.float64) if query.with_inclusion else None
        return Ranked(shown, np.arange(length)[None, :], None, inclusion)
    if not size:
        nothing = np.empty(0)
        empty = np.empty((draw.num_rankings, 0), dtype=np.int64)
        return Ranked(0, empty, np.zeros(draw.num_rankings), nothing if query.with_inclusion else None)
    if draw.target is None:
        drawn = _drawn(query, draw, pool.scores, length)
        inclusion = None
        if query.with_inclusion:
            inclusion = inclusion_probabilities(log_weights(pool.scores, draw.alpha), k=length)
        return Ranked(size, drawn.rankings, drawn.log_probabilities, inclusion)
    # Scores of a retriever are no probabilities: what counts is how far a passage is from the last.
    relevance = normalize_scores(pool.scores) - 1.0
    policy = find_policy(draw.target, pool.scores, relevance, attributes, k=length)
    inclusion = None
    if isinstance(policy, GroupSharesPolicy):
        rng = _generator(query, draw)
        drawn = group_shares.draw(policy.policy, num_rankings=draw.num_rankings, rng=rng)
        inclusion = policy.inclusion if query.with_inclusion else None
    else:
        drawn = _drawn(query, replace(draw, alpha=policy.alpha), pool.scores, length)
        if query.with_inclusion:  # the search knows them to 1e-6 only
            inclusion = inclusion_probabilities(log_weights(pool.scores, policy.alpha), k=length)
    return Ranked(size, drawn.rankings, drawn.log_probabilities, inclusion, policy)


def drawn_from_all(
    query: Query, draw: Draw, found: Unranked, k: int, places: Callable[[IntArray], IntArray]
) -> tuple[Scored, IntArray, FloatArray, FloatArray | None]:
    """Return rankings of everything that may be found, and the part of it that is in them.

    Takes a few numbers for each passage of memory, however many rankings there are.

    Args:
        query: what of the rankings is wanted.
        draw: how they are drawn.
        found: every passage that may be found.
        k: positions of a ranking; fewer passages may exist.
        places: numbers for rows that ascend as passage ids do.

    Returns:
        The passages that some ranking has, best score first, equal scores by ascending id; rankings, indices
        into those, ``[rankings, k]``; their log-probabilities; and each of those passages' inclusion
        probability, or None.
    """
    length = min(k, len(found.rows))
    if not length:
        empty = np.empty((draw.num_rankings, 0), dtype=np.int64)
        nothing = np.empty(0)
        shown = Scored(np.empty(0, dtype=np.int64), nothing)
        return shown, empty, np.zeros(draw.num_rankings), nothing if query.with_inclusion else None
    drawn = _drawn(query, draw, found.scores, length)
    there, numbers = np.unique(drawn.rankings, return_inverse=True)
    rows, scores = found.rows[there], found.scores[there]
    order = np.lexsort((places(rows), -scores))
    new = np.empty(len(order), dtype=np.int64)
    new[order] = np.arange(len(order))
    inclusion = None
    if query.with_inclusion:
        weights = log_weights(found.scores, draw.alpha)
        inclusion = inclusion_probabilities(weights, k=length)[there[order]]
    rankings = new[numbers].reshape(drawn.rankings.shape)
    return Scored(rows[order], scores[order]), rankings, drawn.log_probabilities, inclusion


def warm() -> None:
    """Have draws compiled, or loads what an earlier process compiled, so that no request waits for it."""
    scores = np.array([2.0, 1.0])
    for some in (scores, scores[::-1].copy()):
        draw_from_scores(some, 1.0, num_rankings=1, k=1, rng=0, engine=_ENGINE)


def _drawn(query: Query, draw: Draw, scores: FloatArray, k: int) -> Draws:
    rng = _generator(query, draw)
    return draw_from_scores(scores, draw.alpha, num_rankings=draw.num_rankings, k=k, rng=rng, engine=_ENGINE)


def _generator(query: Query, draw: Draw) -> np.random.Generator:
    return np.random.default_rng([draw.seed, zlib.crc32((query.stream_id or query.text).encode())])
