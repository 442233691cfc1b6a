"""Search for the weights of a vote that answer the training questions best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray, count, float_array, number
from evenmesh_core.ensemble.votes import Pooling, check_pooling, decided, pooled_similarities, voters
from evenmesh_core.ensemble.weight_lines import Best, Line, best_weights
from evenmesh_core.errors import InvalidInput

MAX_EXACT_LINES = 1000
"""Most lines of the exact search among three retriever weights; with more, only starts and ascents are."""
_METRIC_STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of max_weight tried for the weight of one metric
_ASCENT_SHARE = 0.75  # of the evaluations; Nelder–Mead has what is left
_SAME = 1e-9
_POOLS_KEPT = 32
"""Sets of voters whose pooled similarities are kept; a move of one weight changes the set by one voter."""


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
    exact: bool
    """Whether no other weights do better on the training questions."""


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
    """Search metric and retriever weights for the largest mean correctness on the training questions.

    The objective is a step function with many optima, so the search has many starts: equal weights, the best
    single retriever (the filter removes the others), every pair of retrievers, every single metric and the
    other single retrievers. From each it moves one weight at a time to the best place on its line, which is
    exact for retriever weights, until none improves. Nelder–Mead moves all weights together from the best of
    these with the evaluations that are left. The result is never below the best single retriever. With one
    metric it is the global optimum for two retrievers, and for three where their lines are few. Of equals the
    first found is kept. Nothing is random.

    Args:
        similarity: array [Q, K, M, M]: similarities of the answers to Q training questions, as in
            :func:`vote`.
        correct: matrix [Q, M] in [0, 1]: how correct each answer is.
        pooling: as :func:`vote`.
        threshold: as :func:`vote`.
        retriever_filter: as :func:`vote`; from 0 and below half of ``max_weight``.
        drop_filtered: as :func:`vote`.
        max_weight: upper bound of every weight, so that none is relied on alone; above 0.
        max_evaluations: number of objective evaluations, from 2; None means 200 for each weight.
        check: called before each evaluation and line; what it raises ends the search.

    Source: Li et al. 2024, §4.2 and §4.3, search by Nelder–Mead from one start; the starts and lines are ours
    (Och 2003, §4).

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
    if not 0 <= floor < most / 2:
        allowed = f"numbers from 0 and below {most / 2:g}, where the search begins"
        raise InvalidInput("retriever_filter", floor, allowed)
    size = metrics + retrievers
    budget = 200 * size if max_evaluations is None else count("max_evaluations", max_evaluations, low=2)
    problem = _Problem(array, correctness, pooling, level, floor, drop_filtered, most, budget, check)
    exact = problem.search()
    return WeightSearch(
        problem.best[:metrics],
        problem.best[metrics:],
        problem.trace[-1],
        np.array(problem.trace),
        exact,
    )


class _SpentError(Exception):
    """The evaluations are spent."""


class _Problem:
    """The objective, with the best weights seen."""

    def __init__(
        self,
        similarity: FloatArray,
        correct: FloatArray,
        pooling: Pooling,
        threshold: float,
        floor: float,
        drop_filtered: bool,
        most: float,
        budget: int,
        check: Callable[[], None] | None,
    ) -> None:
        questions, self._metrics, self._retrievers, _ = similarity.shape
        self._similarity, self._correct = similarity, correct
        self._pooling: Pooling = pooling
        self._threshold, self._floor, self._drop = threshold, floor, drop_filtered
        self._most, self._budget = most, budget
        self._check = check or (lambda: None)
        self._everyone = np.arange(questions)
        self._singles = correct.mean(axis=0)
        self._perfect = float(correct.max(axis=1).mean())
        self._shares: FloatArray | None = None
        self._combined: FloatArray = similarity[:, 0]
        self._pooled: dict[bytes, FloatArray] = {}
        self.trace: list[float] = []
        self.best = np.empty(0)

    def search(self) -> bool:
        """Search, and return whether the result is known to be the optimum."""
        most, metrics = self._most, self._metrics
        even = np.full(metrics + self._retrievers, most / 2)
        self._evaluate(even)
        self._evaluate(self._alone(int(np.argmax(self._singles))))
        exact = metrics == 1 and self._retrievers <= 2
        try:
            pairs = [] if self._is_done() else self._pairs()
            if metrics == 1 and pairs and self._retrievers == 3 and not self._is_done():
                exact = self._search_three()
            if not exact:
                limit = int(_ASCENT_SHARE * self._budget)
                for start in (even, self.best, *pairs, *self._metric_starts(), *self._alone_in_order()):
                    if self._is_done() or len(self.trace) >= limit:
                        break
                    self._ascend(start, limit)
                if not self._is_done():
                    self._move_together()
        except _SpentError:
            return self._is_done()
        return exact or self._is_done()

    def _is_done(self) -> bool:
        return self.trace[-1] >= self._perfect - _SAME

    # Starts.

    def _alone(self, retriever: int) -> FloatArray:
        weights = np.full(self._metrics + self._retrievers, self._most / 2)
        weights[self._metrics :] = 0.0
        weights[self._metrics + retriever] = self._most
        return weights

    def _alone_in_order(self) -> Iterator[FloatArray]:
        for retriever in np.argsort(-self._singles, kind="stable").tolist():
            yield self._alone(retriever)

    def _metric_starts(self) -> Iterator[FloatArray]:
        if self._metrics > 1:
            for metric in range(self._metrics):
                weights = np.full(self._metrics + self._retrievers, self._most / 2)
                weights[: self._metrics] = 0.0
                weights[metric] = self._most
                yield weights

    def _pairs(self) -> list[FloatArray]:
        """Return the best pairs, best first: one retriever at the bound, the other anywhere.

        Only ratios of weights matter, so these are all votes of two.
        """
        found: list[tuple[float, FloatArray]] = []
        lines = self._retrievers * (self._retrievers - 1)
        if lines > self._budget:
            return []
        for first, second in permutations(range(self._retrievers), 2):
            for best in self._line(self._alone(first), second):
                weights = self._alone(first)
                weights[self._metrics + second] = best.weight
                found.append((best.correctness, weights))
        return self._confirm(found)[: 2 * self._retrievers]

    # Moves.

    def _ascend(self, start: FloatArray, limit: int) -> None:
        """Move one weight at a time until none improves, or ``limit`` evaluations are spent."""
        weights = start.copy()
        value = self._evaluate(weights)
        improved = True
        while improved and len(self.trace) < limit and not self._is_done():
            improved = False
            for place in range(len(weights)):
                for candidate in self._moves(weights, place, value):
                    reached = self._evaluate(candidate)
                    if reached > value + _SAME:
                        weights, value, improved = candidate, reached, True

    def _moves(self, weights: FloatArray, place: int, value: float) -> Iterator[FloatArray]:
        """Yield the weights that moving one may improve."""

        def moved(to: float) -> FloatArray:
            other = weights.copy()
            other[place] = to
            return other

        if place < self._metrics:
            if self._metrics > 1:
                yield from (moved(self._most * step) for step in _METRIC_STEPS)
            return
        if weights[place] > self._floor:
            yield moved(0.0)
        for best in self._line(weights, place - self._metrics):
            if best.correctness > value + _SAME:
                yield moved(best.weight)

    def _search_three(self) -> bool:
        """Search the weights of three retrievers, all above the filter, exactly; False if lines are too many.

        One is at the bound, without loss, because only ratios matter. While the weight of the second crosses
        no place where two changes along the third's line meet, or one meets an end of it, the order of these
        changes stays the same. So a line in each gap between such places, and one at each, sees every vote.
        Single retrievers and pairs are searched before.
        """
        pooled, _, _ = self._tally(np.full(self._metrics + 3, self._most))
        columns: list[tuple[int, int, FloatArray]] = []
        with np.errstate(divide="ignore", invalid="ignore"):
            for first, second in ((0, 1), (1, 2), (2, 0)):
                third = 3 - first - second
                changes = self._most * pooled[:, first] / pooled[:, second]
                thirds = self._most * pooled[:, first] / pooled[:, third]
                ends = np.unique(np.append(thirds[np.isfinite(thirds)], [self._floor, self._most]))
                ratios = pooled[:, third] / pooled[:, second]
                ratios = np.unique(ratios[np.isfinite(ratios)])
                if len(ends) * len(ratios) > MAX_EXACT_LINES**2:
                    return False
                places = np.concatenate([changes, np.multiply.outer(ends, ratios).ravel()])
                places = np.unique(places[(places > self._floor) & (places < self._most)])
                edges = np.concatenate([[self._floor], places, [self._most]])
                gaps = (edges[:-1] + edges[1:]) / 2
                columns.append((first, second, np.concatenate([gaps, edges[1:]])))
                if sum(len(column) for _, _, column in columns) > MAX_EXACT_LINES:
                    return False
        found: list[tuple[float, FloatArray]] = []
        for first, second, column in columns:
            third = 3 - first - second
            for at in column.tolist():
                weights = np.full(self._metrics + 3, self._most)
                weights[self._metrics + second] = at
                for best in self._line(weights, third, pooled):
                    there = weights.copy()
                    there[self._metrics + third] = best.weight
                    found.append((best.correctness, there))
        self._confirm(found)
        return True

    def _confirm(self, found: list[tuple[float, FloatArray]]) -> list[FloatArray]:
        """Evaluate the best weights of lines, and return all of them, best first.

        More than one is evaluated only where rounding undoes a tie on which the best stand.
        """
        found.sort(key=lambda one: -one[0])
        for value, weights in found:
            if value <= self.trace[-1] + _SAME:
                break
            self._evaluate(weights)
        return [weights for _, weights in found]

    def _move_together(self) -> None:
        """Move all weights together by Nelder–Mead, with a first simplex that spans the box."""
        left = self._budget - len(self.trace)
        size = len(self.best)
        if left <= 0:
            return
        from scipy.optimize import minimize

        middle = np.full(size, self._most / 2)
        corners = np.vstack([self.best, middle + np.eye(size) * self._most / 2])
        options = {"initial_simplex": corners, "maxfev": left, "xatol": 1e-3, "fatol": 1e-9, "adaptive": True}
        minimize(
            lambda weights: -self._evaluate(weights),
            self.best,
            method="Nelder-Mead",
            bounds=[(0.0, self._most)] * size,
            options=options,
        )

    # The objective.

    def _evaluate(self, weights: FloatArray) -> float:
        if len(self.trace) >= self._budget:
            raise _SpentError
        self._check()
        value = 0.0  # of weights with no metric or no retriever left to vote by
        if weights[: self._metrics].sum() > 0:
            _, _, winners = self._tally(weights)
            if winners is not None:
                value = float(self._correct[self._everyone, winners].mean())
        if not self.trace or value > self.trace[-1]:
            self.best = weights.copy()
        self.trace.append(max(value, self.trace[-1] if self.trace else value))
        return value

    def _tally(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, IntArray | None]:
        shares, own = weights[: self._metrics], weights[self._metrics :]
        if self._shares is None or not np.array_equal(shares, self._shares):
            self._shares = shares.copy()
            self._combined = np.tensordot(shares / shares.sum(), self._similarity, axes=(0, 1))
            self._pooled.clear()
        survivors = own > self._floor
        pooled = self._pool(voters(survivors, self._drop))
        return pooled, *decided(pooled, own, survivors)

    def _pool(self, voting: BoolArray) -> FloatArray:
        key = voting.tobytes()
        found = self._pooled.get(key)
        if found is None:
            if len(self._pooled) >= _POOLS_KEPT:
                self._pooled.clear()
            found = pooled_similarities(self._combined, voting, self._pooling, self._threshold)
            self._pooled[key] = found
        return found

    def _line(self, weights: FloatArray, mover: int, pooled: FloatArray | None = None) -> list[Best]:
        """Return the best gap of the line of one retriever's weight, and the weight at a change if better."""
        self._check()
        own = weights[self._metrics :].copy()
        own[mover] = self._most  # counted among the voters
        rests = own > self._floor
        rests[mover] = False
        if not rests.any():
            return []
        if pooled is None:
            pooled, _, _ = self._tally(np.concatenate([weights[: self._metrics], own]))
        scores = np.where(rests, own * np.nan_to_num(pooled, nan=0.0), -np.inf)
        top = np.argmax(scores, axis=1)
        line = Line(
            pooled[:, mover],
            self._correct[:, mover],
            scores[self._everyone, top],
            self._correct[self._everyone, top],
            mover < top,
        )
        gap, change = best_weights(line, self._floor, self._most)
        return [gap] if change is None else [gap, change]
