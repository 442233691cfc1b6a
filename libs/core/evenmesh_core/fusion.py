"""Several rankings of the same query made into one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from evenmesh_core.arrays import FloatArray, float_array, same_length
from evenmesh_core.errors import InvalidInput
from evenmesh_core.neighbors import support

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CERTAIN: Final = 1e-6
"""How far from 0 and 1 a probability counts at least."""
_PLATT_BOUNDS: Final = ((0.01, 2.0), (-10.0, 10.0))

ItemId = TypeVar("ItemId", str, int)


class FusedItem(NamedTuple, Generic[ItemId]):
    """An item of a fused ranking."""

    item: ItemId
    score: float


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[ItemId]], *, k: float = 60, weights: Sequence[float] | None = None
) -> list[FusedItem[ItemId]]:
    """Fuse rankings by rank: an item scores Σ w_r / (k + rank_r) over the rankings r that hold it.

    Args:
        rankings: one list of item ids for each ranker, best first, each item at most once; some may be empty.
        k: how little the first ranks stand out, from 0; 60 in the source.
        weights: one weight from 0 for each ranker; None means 1 each.

    Returns:
        All items, best first; equal scores by ascending id. The sums are exactly rounded, so neither the
        order of the rankings nor a tie depends on floating-point luck.

    Source: Cormack, Clarke & Büttcher 2009.

    Raises:
        InvalidInput: no rankings, an item twice in one, ids of mixed type, k or a weight negative or not
            finite.
    """
    if len(rankings) == 0:
        raise InvalidInput("rankings", rankings, "at least one ranking")
    offset = float(float_array("k", k, ndim=0, low=0.0))
    shares = _weights(weights, "rankings", rankings)
    terms: dict[ItemId, list[float]] = {}
    for index, (ranking, share) in enumerate(zip(rankings, shares, strict=True)):
        if len(set(ranking)) != len(ranking):
            raise InvalidInput(f"rankings[{index}]", ranking, "each item once")
        for rank, item in enumerate(ranking, start=1):
            terms.setdefault(item, []).append(share / (offset + rank))
    return _ranked("rankings", terms)


def weighted_score_fusion(
    scores: Sequence[Mapping[ItemId, float]],
    weights: Sequence[float] | None = None,
    *,
    normalization: Literal["min-max", "z-score", "none"] = "min-max",
    missing: Sequence[float] | None = None,
) -> list[FusedItem[ItemId]]:
    """Fuse scores: an item gets Σ w_r · score_r over the rankers r that scored it (CombSUM).

    With "z-score" every item has a score of every ranker that scored any, its own or ``missing``.

    Args:
        scores: for each ranker, the scores of the items it returned; some may be empty.
        weights: one weight from 0 for each ranker; None means 1 each.
        normalization: "min-max" brings each ranker's scores to [0, 1] (all equal: all 1), "z-score" to mean
            0 and standard deviation 1 over all items (all equal: all 0), "none" takes them as they are.
        missing: with "z-score" one score for each ranker, of items that it did not return; None means the
            lowest that it returned.

    Returns:
        All items, best first; equal scores by ascending id; sums exactly rounded.

    Source: Fox & Shaw 1994; Montague & Aslam 2001 for "z-score" (ZMUV), where they estimate the scores of
    items that a ranker did not return in another way.

    Raises:
        InvalidInput: no rankers, scores not finite, ids of mixed type, a weight negative or not finite, or an
            unknown normalization.
    """
    if len(scores) == 0:
        raise InvalidInput("scores", scores, "the scores of at least one ranker")
    if normalization not in ("min-max", "z-score", "none"):
        raise InvalidInput("normalization", normalization, "'min-max', 'z-score' or 'none'")
    shares = _weights(weights, "scores", scores)
    fills: list[float] | None = None
    if missing is not None:
        if normalization != "z-score":
            raise InvalidInput("missing", missing, "None, but for 'z-score'")
        fills = float_array("missing", missing).tolist()
        same_length("scores", scores, "missing", fills)
    terms: dict[ItemId, list[float]] = {item: [] for scored in scores for item in scored}
    for index, (scored, share) in enumerate(zip(scores, shares, strict=True)):
        if not scored:
            continue
        values = float_array(f"scores[{index}]", list(scored.values()))
        if normalization == "min-max":
            low, high = values.min(), values.max()
            values = (values - low) / (high - low) if high > low else values * 0.0 + 1.0
        found = dict(zip(scored, values.tolist(), strict=True))
        if normalization == "z-score":
            fill = min(found.values()) if fills is None else fills[index]
            found = {item: found.get(item, fill) for item in terms}
            whole = np.array(list(found.values()))
            found = dict(zip(found, standardized(whole, whole).tolist(), strict=True))
        for item, value in found.items():
            terms[item].append(share * value)
    return _ranked("scores", terms)


def log_odds_fusion(
    probabilities: FloatArray,
    first: FloatArray,
    weight: float,
    *,
    neighbors: float = 0.0,
    vectors: csr_array | None = None,
    slope: float = 1.0,
    intercept: float = 0.0,
) -> FloatArray:
    """Fuse probabilities with standardized scores, and with what similar passages have.

    With x = logit p + weight · z the result is σ(slope · (x + neighbors · s(x)) + intercept); s is
    :func:`evenmesh_core.neighbors.support`.

    Args:
        probabilities: p, vector [n] in [0, 1]; those within 1e-6 of 0 or 1 count as that far from it.
        first: z, vector [n], of a first stage; see :func:`standardized`.
        weight: of z beside the log-odds, from 0.
        neighbors: weight of the support of similar passages, from 0.
        vectors: of the passages, [n, any]; None if ``neighbors`` is 0.
        slope: of the calibration (Platt 1999), above 0: it does not change the order.
        intercept: of the calibration.

    Returns:
        Vector [n] in [0, 1]; with 1 as ``slope`` and 0 as the rest the probabilities.

    Source: naive Bayes: log-odds of independent evidence add up. Fuhr 1989 fits them the same way.

    Raises:
        InvalidInput: a probability outside [0, 1], vectors of different length, a number that is not finite,
            a negative weight, a slope that is not positive, or a weight of neighbors without vectors.
    """
    steepness = float(float_array("slope", slope, ndim=0))
    if steepness <= 0.0:
        raise InvalidInput("slope", slope, "a number above 0")
    offset = float(float_array("intercept", intercept, ndim=0))
    odds = fused_log_odds(probabilities, first, weight, neighbors=neighbors, vectors=vectors)
    # tanh does not overflow: σ(x) = (1 + tanh(x / 2)) / 2.
    fused: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * (steepness * odds + offset)))
    return fused


def fused_log_odds(
    probabilities: FloatArray,
    first: FloatArray,
    weight: float,
    *,
    neighbors: float = 0.0,
    vectors: csr_array | None = None,
) -> FloatArray:
    """Return what :func:`log_odds_fusion` calibrates: x + neighbors · s(x), with x = logit p + weight · z.

    Args:
        probabilities: as there.
        first: as there.
        weight: as there.
        neighbors: as there.
        vectors: as there.

    Returns:
        Vector [n].

    Raises:
        InvalidInput: as there.
    """
    chances = float_array("probabilities", probabilities, low=0.0, high=1.0)
    scores = float_array("first", first)
    same_length("probabilities", chances, "first", scores)
    share = float(float_array("weight", weight, ndim=0, low=0.0))
    inside = np.clip(chances, _CERTAIN, 1.0 - _CERTAIN)
    odds = np.log(inside) - np.log1p(-inside) + share * scores
    shared = float(float_array("neighbors", neighbors, ndim=0, low=0.0))
    if shared > 0.0:
        if vectors is None:
            raise InvalidInput("vectors", vectors, "vectors of the passages, or neighbors=0")
        odds = odds + shared * support(odds, vectors)
    return odds


def platt_scaling(log_odds: FloatArray, values: FloatArray, *, smoothed: bool = True) -> tuple[float, float]:
    """Return slope and intercept with which σ(slope · x + intercept) fits values best, by maximum likelihood.

    Smoothed values are brought nearer to each other, as by one more of each kind: a few judgements that are
    all alike, or in a perfect order, then do not make every score 0 or 1.

    Args:
        log_odds: x, vector [n], n from 1.
        values: observed values, 1 or 0, or between, vector [n].
        smoothed: whether to fit Platt's targets instead of the values.

    Returns:
        Slope in [0.01, 2], intercept in [−10, 10].

    Source: Platt 1999, section 2.2, with his targets; here a value is a share of both kinds.

    Raises:
        InvalidInput: no numbers, vectors of different length, a number that is not finite, or a value
            outside [0, 1].
    """
    odds = float_array("log_odds", log_odds)
    observed = float_array("values", values, low=0.0, high=1.0)
    same_length("log_odds", odds, "values", observed)
    if not len(odds):
        raise InvalidInput("log_odds", log_odds, "at least one number")
    targets = observed
    if smoothed:
        useful = float(observed.sum())
        high, low = (useful + 1.0) / (useful + 2.0), 1.0 / (len(odds) - useful + 2.0)
        targets = low + (high - low) * observed

    def loss(of: FloatArray) -> tuple[float, FloatArray]:
        sums = of[0] * odds + of[1]
        errors = 0.5 * (1.0 + np.tanh(0.5 * sums)) - targets
        value = float(np.mean(np.logaddexp(0.0, sums) - targets * sums))
        return value, np.array([np.mean(errors * odds), np.mean(errors)])

    from scipy.optimize import minimize  # a tenth of a second to import

    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=_PLATT_BOUNDS)
    slope, intercept = found.x.tolist()
    return slope, intercept


def standardized(values: FloatArray, of: FloatArray) -> FloatArray:
    """Return (value − mean) / standard deviation, with those of a pool; 0 where the pool's values are equal.

    Args:
        values: vector [n].
        of: the pool, vector [m] with m from 1.

    Source: Montague & Aslam 2001 (ZMUV).
    """
    spread = of.std() if of.max() > of.min() else 0.0
    brought: FloatArray = (values - of.mean()) / spread if spread > 0.0 else values * 0.0
    return brought


def _weights(weights: Sequence[float] | None, name: str, rankers: Sequence[object]) -> list[float]:
    if weights is None:
        return [1.0] * len(rankers)
    shares: list[float] = float_array("weights", weights, low=0.0).tolist()
    same_length(name, rankers, "weights", shares)
    return shares


def _ranked(name: str, terms: Mapping[ItemId, list[float]]) -> list[FusedItem[ItemId]]:
    if not (all(isinstance(item, str) for item in terms) or all(isinstance(item, int) for item in terms)):
        raise InvalidInput(name, list(terms), "ids that are all texts or all whole numbers")
    fused = [FusedItem(item, math.fsum(parts)) for item, parts in terms.items()]
    return sorted(fused, key=lambda entry: (-entry.score, entry.item))
