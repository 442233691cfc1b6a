"""A vote while answers still come in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray, float_array, indicators, number
from evenmesh_core.ensemble.votes import (
    Pooling,
    check_pooling,
    check_similarity,
    metric_shares,
    retriever_array,
    tally,
)
from evenmesh_core.errors import InvalidInput


@dataclass(frozen=True)
class AnytimeVote:
    """The standing of a vote."""

    winner: int | None
    """Index of the winner among the answers that arrived; None while none has that may win."""
    scores: FloatArray
    """Vector [M]: scores among the answers that arrived; ``nan`` where none has, where the filter removed the
    retriever, and for an answer without other voters."""
    arrived: int
    """Number of answers that arrived."""
    decided: bool
    """Whether the winner stays, whatever the answers waited for turn out to be, and whichever of them never
    come."""


def anytime_vote(
    similarity: ArrayLike,
    metric_weights: ArrayLike,
    retriever_weights: ArrayLike,
    arrived: ArrayLike,
    missing: ArrayLike,
    *,
    pooling: Pooling = "mean",
    threshold: float = 0.8,
    retriever_filter: float = 0.1,
    drop_filtered: bool = False,
    normalize: bool = True,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    symmetric: bool = True,
) -> AnytimeVote:
    """Let the arrived answers vote, and decide whether pending ones can change the winner.

    An answer is waited for unless it arrived or is missing. It will come, with any similarities from ``low``
    to ``high`` to the others, or turn out to be missing. A missing answer neither wins nor votes, as if its
    retriever had never been asked. The vote itself is :func:`vote` among the answers that arrived; once all
    have, it is :func:`vote`. Once decided, no later update names another winner.

    ``decided`` is exact (to within rounding) for every pooling. The winner c falls if and only if, in some
    outcome, a rival r beats it. A score never falls as the answer's own similarities rise, so r is best
    placed where its unknown similarities are ``high`` and all others ``low``; the similarity of r and c, if
    it is one number for both, is tried at both ends, as what it adds to either score is linear ("mean"), a
    step at the threshold, or, for "max", of no use to r once r has another at ``high``. The answers waited
    for differ in nothing but their weights. By "mean", r leads c by an amount linear in the number of those
    that come, so none more than r or all of them is best for r; by "max" only whether there are any matters;
    by "majority" and "plurality" each one more adds to r's count and to no other's but its own, which is at
    most 1. By "plurality" the same holds for a rival that cannot win itself but can take the plurality from
    c. Where the threshold lies outside [low, high), who is alike is known beforehand, and every number of
    answers is tried, those of the largest weights first: they differ in nothing else.

    Args:
        similarity: array [K, M, M] as in :func:`vote`; entries of answers that have not arrived are
            ignored.
        metric_weights: vector [K] as in :func:`vote`.
        retriever_weights: vector [M] as in :func:`vote`.
        arrived: vector [M] of booleans.
        missing: vector [M] of booleans: answers that will never come.
        pooling: as in :func:`vote`.
        threshold: as in :func:`vote`.
        retriever_filter: as in :func:`vote`.
        drop_filtered: as in :func:`vote`.
        normalize: as in :func:`vote`.
        low: least similarity that is not yet known, one number, or one for each metric.
        high: largest similarity that is not yet known, likewise.
        symmetric: whether a similarity is the same in both directions; False for entailment.

    Source: Li et al. 2024, §4.1; the anytime form is ours.

    Raises:
        InvalidInput: as :func:`vote`; an answer both arrived and missing; low above high.
    """
    here, gone = indicators("arrived", arrived), indicators("missing", missing)
    if len(here) != len(gone):
        raise InvalidInput("len(missing)", len(gone), f"{len(here)}, the length of arrived")
    if np.any(here & gone):
        place = int(np.argmax(here & gone))
        raise InvalidInput(f"missing[{place}]", True, "false for an answer that arrived")
    known = here[:, None] & here
    array = np.asarray(similarity)
    if array.ndim != 3 or array.shape[1:] != known.shape:
        raise InvalidInput("similarity.shape", array.shape, f"[metrics, {len(here)}, {len(here)}]")
    check_similarity(array.shape[1:], array.shape[0], metric_weights)
    shares = metric_shares(metric_weights, normalize)
    combined = np.tensordot(shares, float_array("similarity", np.where(known, array, 0.0), ndim=3), axes=1)
    least, most = _bound("low", low, shares), _bound("high", high, shares)
    if np.any(np.asarray(low) > np.asarray(high)):
        raise InvalidInput("low", low, "at most high")
    weights = retriever_array(retriever_weights, len(here))
    survivors: BoolArray = weights > number("retriever_filter", retriever_filter)
    if not survivors.any():
        raise InvalidInput("retriever_weights", weights.tolist(), f"at least one above {retriever_filter:g}")
    polls = _Polls(
        combined,
        weights,
        survivors,
        check_pooling(pooling),
        number("threshold", threshold),
        drop_filtered,
        known,
        least,
        most,
        symmetric,
    )
    waiting = ~(here | gone)
    if drop_filtered:
        waiting = waiting & survivors
    scores, winner = polls.standing(here)
    if winner is None:
        decided = not np.any(waiting & survivors)
    else:
        decided = all(
            polls.winners(pool, outcomes) == {winner}
            for pool, outcomes in polls.extremes(here, waiting, winner)
        )
    return AnytimeVote(winner, scores, int(here.sum()), decided)


@dataclass(frozen=True)
class _Polls:
    """Votes among some of the answers, under some outcome of what is unknown."""

    combined: FloatArray
    weights: FloatArray
    survivors: BoolArray
    pooling: Pooling
    threshold: float
    drop_filtered: bool
    known: BoolArray
    low: float
    high: float
    symmetric: bool

    def standing(self, pool: BoolArray) -> tuple[FloatArray, int | None]:
        """Return scores [M] and the winner of the answers in the pool, all of them known."""
        scores = np.full(len(pool), np.nan)
        inside = np.flatnonzero(pool)
        if len(inside) == 0:
            return scores, None
        _, some, winners = self._tally(inside, self.combined[None])
        scores[inside] = some[0]
        return scores, None if winners is None else int(inside[winners[0]])

    def winners(self, pool: BoolArray, outcomes: FloatArray) -> set[int]:
        """Return the winners among the answers in the pool under each of the outcomes [O, M, M]."""
        inside = np.flatnonzero(pool)
        _, _, winners = self._tally(inside, outcomes)
        return set() if winners is None else set(inside[winners].tolist())

    def _tally(
        self, inside: IntArray, outcomes: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray | None]:
        some = outcomes[:, inside[:, None], inside]
        weights, survivors = self.weights[inside], self.survivors[inside]
        return tally(some, weights, survivors, self.pooling, self.threshold, self.drop_filtered)

    def extremes(
        self, here: BoolArray, waiting: BoolArray, winner: int
    ) -> Iterator[tuple[BoolArray, FloatArray]]:
        """Yield pools of answers with the outcomes [O, M, M] in which a rival is best placed to win."""
        places = np.flatnonzero(waiting)
        if len(places) == 0:
            return
        by_count = self.pooling in ("majority", "plurality")
        if by_count and not self.low <= self.threshold < self.high:
            outcome = np.where(self.known, self.combined, self.low)[None]
            strongest = places[np.argsort(-self.weights[places], kind="stable")]
            for number_of_arrivals in range(1, len(places) + 1):
                pool = here.copy()
                pool[strongest[:number_of_arrivals]] = True
                yield pool, outcome
            return
        everyone = here | waiting
        for rival in np.flatnonzero(everyone).tolist():
            if rival == winner:
                continue
            outcomes = self._favouring(rival, winner)
            yield everyone, outcomes
            if waiting[rival]:
                pool = here.copy()
                pool[rival] = True
                yield pool, outcomes

    def _favouring(self, rival: int, winner: int) -> FloatArray:
        outcome = np.where(self.known, self.combined, self.low)
        outcome[rival] = np.where(self.known[rival], self.combined[rival], self.high)
        if not self.symmetric:
            return outcome[None]
        outcome[:, rival] = np.where(self.known[:, rival], self.combined[:, rival], self.high)
        if self.known[rival, winner]:
            return outcome[None]
        apart = outcome.copy()
        apart[rival, winner] = apart[winner, rival] = self.low
        return np.stack([outcome, apart])


def _bound(name: str, values: ArrayLike, shares: FloatArray) -> float:
    bounds = float_array(name, values, ndim=min(np.ndim(values), 1))
    if bounds.ndim and len(bounds) != len(shares):
        raise InvalidInput(f"len({name})", len(bounds), f"{len(shares)}, one for each metric, or one number")
    return float((shares * bounds).sum())
