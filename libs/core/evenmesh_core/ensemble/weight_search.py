"""Search for the weights of a vote that answer the training questions best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, count, float_array, number
from evenmesh_core.ensemble.votes import Pooling, check_pooling, tally
from evenmesh_core.errors import InvalidInput


@dataclass(frozen=True)
class WeightSearch:
    """The best weights found."""

    metric_weights: FloatArray
    """Vector [K], each in [0, max_weight]; :func:`vote` divides them by their sum."""
    retriever_weights: FloatArray
    """Vector [M], each in [0, max_weight]; those up to the filter are removed."""
    correctness: float
    """Mean correctness of the winning answers on the training questions, in [0, 1]."""
    trace: FloatArray
    """Vector [E]: best correctness after each evaluation."""


def search_weights(
    similarity: ArrayLike,
    correct: ArrayLike,
    *,
    pooling: Pooling = "mean",
    threshold: float = 0.8,
    retriever_filter: float = 0.1,
    drop_filtered: bool = False,
    max_weight: float = 0.6,
    max_evaluations: int | None = None,
    check: Callable[[], None] | None = None,
) -> WeightSearch:
    """Search metric and retriever weights by Nelder–Mead for the largest mean correctness.

    The objective is a step function, so the first simplex spans the whole box, and the best weights seen are
    returned, wherever the simplex ends. Starts from equal weights; nothing is random.

    Args:
        similarity: array [Q, K, M, M]: similarities of the answers to Q training questions, as in
            :func:`vote`.
        correct: matrix [Q, M] in [0, 1]: how correct each answer is.
        pooling: as :func:`vote`.
        threshold: as :func:`vote`.
        retriever_filter: as :func:`vote`; below ``max_weight``.
        drop_filtered: as :func:`vote`.
        max_weight: upper bound of every weight, so that none is relied on alone; above 0.
        max_evaluations: number of objective evaluations; None means 200 for each weight.
        check: called before each evaluation; what it raises ends the search.

    Source: Li et al. 2024, §4.2 and §4.3.

    Raises:
        InvalidInput: shapes that do not match, numbers out of range, or an unknown pooling.
    """
    array = float_array("similarity", similarity, ndim=4)
    questions, metrics, retrievers, others = array.shape
    if retrievers != others:
        raise InvalidInput("similarity.shape", array.shape, "[questions, metrics, answers, answers]")
    correctness = float_array("correct", correct, ndim=2, low=0.0, high=1.0)
    if correctness.shape != (questions, retrievers):
        raise InvalidInput("correct.shape", correctness.shape, f"{(questions, retrievers)}")
    check_pooling(pooling)
    level = number("threshold", threshold)
    most = number("max_weight", max_weight)
    if most <= 0:
        raise InvalidInput("max_weight", max_weight, "numbers above 0")
    floor = number("retriever_filter", retriever_filter)
    if floor >= most / 2:
        raise InvalidInput("retriever_filter", floor, f"numbers below {most / 2:g}, where the search begins")
    size = metrics + retrievers
    budget = 200 * size if max_evaluations is None else count("max_evaluations", max_evaluations)

    everyone = np.arange(questions)
    best = np.full(size, most / 2)
    trace: list[float] = []

    def loss(weights: FloatArray) -> float:
        nonlocal best
        if check is not None:
            check()
        value = evaluate(weights)
        if not trace or value > trace[-1]:
            best = weights.copy()
        trace.append(max(value, trace[-1] if trace else value))
        return -value

    def evaluate(weights: FloatArray) -> float:
        shares, own = weights[:metrics], weights[metrics:]
        if shares.sum() <= 0:
            return 0.0  # no metric left to vote by
        combined = np.tensordot(shares / shares.sum(), array, axes=(0, 1))
        _, _, winners = tally(combined, own, own > floor, pooling, level, drop_filtered)
        return 0.0 if winners is None else float(correctness[everyone, winners].mean())

    from scipy.optimize import minimize

    corners = np.vstack([best, np.full((size, size), most / 2) + np.eye(size) * most / 2])
    options = {"initial_simplex": corners, "maxfev": budget, "xatol": 1e-3, "fatol": 1e-9, "adaptive": True}
    minimize(loss, best, method="Nelder-Mead", bounds=[(0.0, most)] * size, options=options)
    return WeightSearch(best[:metrics], best[metrics:], trace[-1], np.array(trace))
