"""Votes among the answers that one question got with different retrievers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray, count, float_array, number
from evenmesh_core.errors import InvalidInput

Pooling = Literal["mean", "max", "majority", "plurality"]

POOLINGS: tuple[Pooling, ...] = ("mean", "max", "majority", "plurality")


@dataclass(frozen=True)
class Vote:
    """The outcome of a vote."""

    pooled: FloatArray
    """Vector [M]: each answer's similarity to the others, pooled; ``nan`` where there are no others."""
    scores: FloatArray
    """Vector [M]: retriever weight · pooled (equation 7); ``nan`` where the filter removed the retriever."""
    winner: int
    """Index of the best score among the retrievers left; the first of equals."""


def vote(
    similarity: ArrayLike,
    metric_weights: ArrayLike,
    retriever_weights: ArrayLike,
    *,
    pooling: Pooling = "mean",
    threshold: float = 0.8,
    retriever_filter: float = 0.1,
    drop_filtered: bool = False,
    normalize: bool = True,
) -> Vote:
    """Let the answers of M retrievers vote: the answer most like the others wins.

    Args:
        similarity: array [K, M, M]: by metric k, how similar answer n (last axis) is to answer m; diagonals
            are ignored.
        metric_weights: vector [K] of weights ω^s from 0, at least one above 0.
        retriever_weights: vector [M] of weights ω^r from 0.
        pooling: "mean" or "max" of the combined similarities to the other answers; "majority": 1 if at least
            half of the others are above the threshold, else 0; "plurality": 1 if no answer has more others
            above the threshold, else 0.
        threshold: combined similarity above which (not at which) two answers count as the same.
        retriever_filter: weight up to which (inclusive) a retriever is removed: its answer cannot win.
        drop_filtered: whether the removed do not vote for the others either (the authors' code); if not, they
            do (the paper).
        normalize: whether the metric weights are divided by their sum first.

    Source: Li et al. 2024, §4.1, equations 6 and 7; §4.2 for the filter; appendix C.4 for the
    poolings.

    Raises:
        InvalidInput: shapes that do not match, numbers not finite, weights negative, no metric weight above
            0, an unknown pooling, or no retriever above the filter.
    """
    array = float_array("similarity", similarity, ndim=3)
    check_similarity(array.shape[1:], array.shape[0], metric_weights)
    combined = np.tensordot(metric_shares(metric_weights, normalize), array, axes=1)
    weights = retriever_array(retriever_weights, array.shape[1])
    pooled, scores, winners = tally(
        combined[None],
        weights,
        weights > number("retriever_filter", retriever_filter),
        check_pooling(pooling),
        number("threshold", threshold),
        drop_filtered,
    )
    if winners is None:
        raise InvalidInput("retriever_weights", weights.tolist(), f"at least one above {retriever_filter:g}")
    return Vote(pooled[0], scores[0], int(winners[0]))


def agreement(similarity: ArrayLike, winner: int, *, threshold: float = 0.8) -> float:
    """Return the share of the other answers that are like the winner, in [0, 1]; ``nan`` without others.

    Args:
        similarity: matrix [M, M] of combined similarities as in :func:`vote`; only the winner's row is read,
            without its diagonal.
        winner: index of the winner.
        threshold: similarity above which (not at which) two answers count as the same.

    Raises:
        InvalidInput: no square matrix of finite numbers, or a winner outside [0, M).
    """
    matrix = float_array("similarity", similarity, ndim=2)
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidInput("similarity.shape", matrix.shape, "as many rows as columns, one of each an answer")
    return agreement_of(
        matrix[count("winner", winner, low=0, high=len(matrix) - 1)], winner, threshold=threshold
    )


def agreement_of(row: ArrayLike, winner: int, *, threshold: float = 0.8) -> float:
    """Return :func:`agreement` from the winner's row [M] of the similarities alone."""
    others = np.delete(float_array("row", row), count("winner", winner, low=0, high=max(0, np.size(row) - 1)))
    return float(np.mean(others > number("threshold", threshold))) if len(others) else float("nan")


def check_pooling(pooling: Pooling) -> Pooling:
    """Check a pooling's name.

    Raises:
        InvalidInput: an unknown one.
    """
    if pooling not in POOLINGS:
        raise InvalidInput("pooling", pooling, ", ".join(map(repr, POOLINGS)))
    return pooling


def check_similarity(square: tuple[int, ...], metrics: int, metric_weights: ArrayLike) -> None:
    """Check that similarities are square, and that there is a weight for each metric.

    Raises:
        InvalidInput: they are not.
    """
    if square[0] != square[1]:
        raise InvalidInput("similarity.shape", square, "as many rows as columns, one of each for each answer")
    if np.shape(metric_weights) != (metrics,):
        raise InvalidInput(
            "metric_weights.shape", np.shape(metric_weights), f"{(metrics,)}, one for each metric"
        )


def metric_shares(metric_weights: ArrayLike, normalize: bool) -> FloatArray:
    """Read the metric weights, divided by their sum if wanted.

    Raises:
        InvalidInput: a weight negative or not finite, or none above 0.
    """
    weights = float_array("metric_weights", metric_weights, low=0.0)
    total = weights.sum()
    if total <= 0:
        raise InvalidInput("metric_weights", weights.tolist(), "at least one above 0")
    return weights / total if normalize else weights


def retriever_array(retriever_weights: ArrayLike, retrievers: int) -> FloatArray:
    """Read the retriever weights.

    Raises:
        InvalidInput: not one for each retriever, or one negative or not finite.
    """
    weights = float_array("retriever_weights", retriever_weights, low=0.0)
    if len(weights) != retrievers:
        raise InvalidInput("len(retriever_weights)", len(weights), f"{retrievers}, one for each answer")
    return weights


def tally(
    combined: FloatArray,
    weights: FloatArray,
    survivors: BoolArray,
    pooling: Pooling,
    threshold: float,
    drop_filtered: bool,
) -> tuple[FloatArray, FloatArray, IntArray | None]:
    """Count the votes of Q questions at once, arguments checked.

    Args:
        combined: array [Q, M, M] of combined similarities.
        weights: vector [M] of retriever weights.
        survivors: vector [M]: retrievers above the filter.
        pooling: as :func:`vote`.
        threshold: as :func:`vote`.
        drop_filtered: as :func:`vote`.

    Returns:
        Pooled similarities [Q, M], scores [Q, M] and winners [Q]; winners are None if no retriever
        survives.
    """
    pooled = pooled_similarities(combined, voters(survivors, drop_filtered), pooling, threshold)
    scores, winners = decided(pooled, weights, survivors)
    return pooled, scores, winners


def voters(survivors: BoolArray, drop_filtered: bool) -> BoolArray:
    """Return who votes for others, [M]: those above the filter, or all."""
    return survivors if drop_filtered else np.ones_like(survivors)


def pooled_similarities(
    combined: FloatArray, voters: BoolArray, pooling: Pooling, threshold: float
) -> FloatArray:
    """Return how similar each answer is to those of the other voters, [Q, M]; ``nan`` without any.

    No weight of a retriever is in it: whoever compares weights of the same voters needs it once.

    Args:
        combined: array [Q, M, M] of combined similarities.
        voters: vector [M]: who votes.
        pooling: as :func:`vote`.
        threshold: as :func:`vote`.
    """
    others = voters[:, None] & voters & ~np.eye(len(voters), dtype=np.bool_)
    return np.where(others.any(axis=1), _pool(combined, others, voters, pooling, threshold), np.nan)


def decided(
    pooled: FloatArray, weights: FloatArray, survivors: BoolArray
) -> tuple[FloatArray, IntArray | None]:
    """Return scores [Q, M], and winners [Q] or None where no retriever survives.

    Args:
        pooled: array [Q, M] of pooled similarities.
        weights: vector [M] of retriever weights.
        survivors: vector [M]: retrievers above the filter.
    """
    scores = np.where(survivors, weights * pooled, np.nan)
    if not survivors.any():
        return scores, None
    # A lone survivor has no score without other voters, and wins nevertheless.
    ranked = np.where(survivors, np.where(np.isnan(scores), 0.0, scores), -np.inf)
    return scores, np.argmax(ranked, axis=1)


def _pool(
    combined: FloatArray, others: BoolArray, voters: BoolArray, pooling: Pooling, threshold: float
) -> FloatArray:
    number_of_others = others.sum(axis=1)
    if pooling == "mean":
        # Sorted, so that answers with the same similarities in another order tie to the last bit.
        total = np.sort(np.where(others, combined, 0.0), axis=2).sum(axis=2)
        mean: FloatArray = total / np.maximum(number_of_others, 1)
        return mean
    if pooling == "max":
        most_alike: FloatArray = np.where(others, combined, -np.inf).max(axis=2)
        return most_alike
    alike = np.count_nonzero((combined > threshold) & others, axis=2)
    if pooling == "majority":
        return np.where(alike >= number_of_others / 2, 1.0, 0.0)
    most = np.where(voters, alike, -1).max(axis=1, keepdims=True)
    return np.where(alike == most, 1.0, 0.0)
