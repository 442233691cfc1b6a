"""Expected utility of a RAG system, and how it trades off against fairness (Kim & Diaz 2025, §3.1, §3.3, §5,
appendices).

The utility u of one output is any string metric (:mod:`evenmesh_core.text_metrics`), higher is better, from
0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray, float_array, number, same_length
from evenmesh_core.averaged_curves import SAME_X, averages, covered, group_points, mean_height
from evenmesh_core.errors import InvalidInput

_SLACK = 1e-9  # what rounding may add to a quantity that is at most 1


def expected_utility(utilities: ArrayLike, probabilities: ArrayLike | None = None) -> float:
    """Average the utilities of the outputs that the N rankings of one query led to.

    Args:
        utilities: vector [N] of finite utilities.
        probabilities: vector [N] of p(π|q), where the rankings are weighed by it instead of sampled from it;
            divided by its sum, so the likeliest rankings alone will do.

    Source: Kim & Diaz 2025, equation 7.

    Raises:
        InvalidInput: no utilities, one not finite, a probability outside [0, 1], or none above 0.
    """
    values = float_array("utilities", utilities)
    if probabilities is None:
        return float(values.mean())
    share = float_array("probabilities", probabilities, low=0.0, high=1.0)
    same_length("utilities", values, "probabilities", share)
    if share.sum() <= 0:
        raise InvalidInput("probabilities", probabilities, "at least one above 0")
    return float(values @ share / share.sum())


def maximum_utility(runs: Sequence[ArrayLike]) -> float:
    """Find u_max of one query and generator: the largest utility of any output of any run.

    Args:
        runs: the utilities of each run, a vector each: every α that was tried, and the oracle's runs.

    Source: Kim & Diaz 2025, equation 25.

    Raises:
        InvalidInput: no runs, an empty one, or a utility negative or not finite.
    """
    if len(runs) == 0:
        raise InvalidInput("runs", runs, "the utilities of at least one run")
    return float(max(float_array(f"runs[{i}]", run, low=0.0).max() for i, run in enumerate(runs)))


def normalized_expected_utility(eu: ArrayLike, u_max: ArrayLike) -> FloatArray:
    """Divide expected utilities by the largest utility seen: the share of what was attainable.

    Args:
        eu: expected utilities, one number or a vector [Q], each from 0 to its u_max.
        u_max: :func:`maximum_utility` of the same queries, one number or a vector [Q].

    Returns:
        Array of the shape of ``eu`` in [0, 1]; ``nan`` where u_max is 0, because no run was of any use.

    Source: Kim & Diaz 2025, equation 26.

    Raises:
        InvalidInput: a value negative or not finite, or an expected utility above its u_max.
    """
    mean = float_array("eu", eu, ndim=min(np.ndim(eu), 1), low=0.0)
    most = float_array("u_max", u_max, ndim=min(np.ndim(u_max), 1), low=0.0)
    if most.ndim == 1 and mean.shape != most.shape:
        raise InvalidInput("u_max.shape", most.shape, f"{mean.shape}, the shape of eu, or one number")
    if np.any(mean > most * (1 + _SLACK)):
        raise InvalidInput("eu", eu, "at most u_max, the maximum over all runs, these among them")
    undefined = np.full(mean.shape, np.nan)
    share: FloatArray = np.divide(mean, most, out=undefined, where=np.broadcast_to(most > 0, mean.shape))
    return np.minimum(share, 1.0)


def lamp3_utility(reference: ArrayLike, prediction: ArrayLike) -> FloatArray:
    """Turn the absolute error of a rating into a utility: 4 − |y − ŷ|, clipped to [0, 4].

    Args:
        reference: true ratings y from 1 to 5, one number or a vector [Q].
        prediction: predicted ratings ŷ, any finite numbers, of the same shape.

    Source: Kim & Diaz 2025, appendix C.3 (the error subtracted from its upper bound), for LaMP-3.

    Raises:
        InvalidInput: a reference outside [1, 5], a prediction not finite, or shapes that differ.
    """
    truth = float_array("reference", reference, ndim=min(np.ndim(reference), 1), low=1.0, high=5.0)
    guess = float_array("prediction", prediction, ndim=min(np.ndim(prediction), 1))
    if truth.shape != guess.shape:
        raise InvalidInput("prediction.shape", guess.shape, f"{truth.shape}, the shape of reference")
    return np.clip(4.0 - np.abs(truth - guess), 0.0, 4.0)


def utility_gains(augmented: ArrayLike, baseline: float) -> FloatArray:
    """Return each item's utility gain δ_j = u_j − u.

    Args:
        augmented: vector [n]: utility u_j of the output when the generator is given item j alone.
        baseline: utility u of the output when it is given no item.

    Source: Kim & Diaz 2025, §3.1 and algorithm 1.

    Raises:
        InvalidInput: not a non-empty vector, or a utility not finite.
    """
    gains: FloatArray = float_array("augmented", augmented) - number("baseline", baseline)
    return gains


def utility_labels(augmented: ArrayLike, baseline: float) -> BoolArray:
    """Label as useful the items whose utility gain is positive: vector [n] of booleans.

    Args and errors as :func:`utility_gains`.

    Source: Kim & Diaz 2025, §3.1 and algorithm 1.
    """
    labels: BoolArray = utility_gains(augmented, baseline) > 0
    return labels


@dataclass(frozen=True)
class Tradeoff:
    """Change of y with x over the points of all queries and α."""

    slope: float
    """Least-squares slope; steeper is a stronger tradeoff; ``nan`` where all x agree to within 1e-9."""
    intercept: float
    """Least-squares value at x = 0; ``nan`` where the slope is."""
    auc: float
    """Area under the averaged curve from ``auc_from`` to ``auc_to``, divided by that range: its mean height;
    ``nan`` where the range is at most 1e-9 wide, or without points."""
    auc_from: float
    """Smallest average x of a group, in [0, 1]; ``nan`` without points."""
    auc_to: float
    """Largest average x of a group, in [0, 1]; ``nan`` without points."""
    points: int
    """Number of points used."""
    undefined: int
    """Number of points left out because x or y is ``nan``."""


def tradeoff(x: ArrayLike, y: ArrayLike, *, dials: Sequence[Hashable] | None = None) -> Tradeoff:
    """Fit a line to the points (x, y), and take the mean height of their averaged curve.

    The curve joins the averages of groups of points: of one dial, or without dials of neighbouring x
    (:func:`evenmesh_core.averaged_curves.group_points`). Its area is taken between the first and the last of
    them, over the range that the data cover, and divided by that range. Areas of two systems compare only
    over the same range (:func:`evenmesh_core.intervals.common_areas`).

    Args:
        x: vector [P] in [0, 1], one point for each query and α: normalised EE-D or EE-R; ``nan`` where
            undefined.
        y: vector [P]: normalised EE-R or EU; ``nan`` where undefined.
        dials: the α of each point.

    Source: Kim & Diaz 2025, §5 and tables 3 to 5 use slope and AUC without defining the AUC; this definition
    is ours. :func:`extended_auc` is an older one.

    Raises:
        InvalidInput: no points, lengths that differ, x outside [0, 1], or an infinite value.
    """
    across, up, defined = _points(x, y)
    if dials is not None:
        same_length("x", defined, "dials", dials)
        dials = [dial for dial, known in zip(dials, defined.tolist(), strict=True) if known]
    points = len(across)
    slope = intercept = auc = low = high = float("nan")
    if points:
        # Relative to the first y, a level curve has slope 0 and its own height, not the rounding of a mean.
        rise = up - up[0]
        curve = averages(across, rise, group_points(across, dials))
        low, high = (float(end) for end in covered(curve))
        auc = float(up[0] + mean_height(curve, low, high))
        if np.ptp(across) > SAME_X:
            centred = across - across.mean()
            slope = float(centred @ (rise - rise.mean())) / float(centred @ centred)
            intercept = float(up.mean() - slope * across.mean())
    return Tradeoff(slope, intercept, auc, low, high, points, len(defined) - points)


def extended_auc(x: ArrayLike, y: ArrayLike) -> float:
    """Return the area over [0, 1] under the points themselves, for comparison with earlier results.

    y is averaged at equal x, straight between neighbouring x, and constant before the first and after the
    last. So the outermost points decide what lies beyond the data: in simulation a bootstrap interval of it
    covers 80 %, not 95. :func:`tradeoff` has the area to use.

    Args and errors as :func:`tradeoff`; ``nan`` without points.
    """
    across, up, _ = _points(x, y)
    if not len(across):
        return float("nan")
    places, group, sizes = np.unique(across, return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=up) / sizes
    places = np.concatenate([[0.0], places, [1.0]])
    means = np.concatenate([means[:1], means, means[-1:]])
    return float(np.diff(places) @ (means[1:] + means[:-1])) / 2


def _points(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return x and y of the defined points, and which those are."""
    across = float_array("x", x, low=0.0, high=1.0 + _SLACK, undefined=True)
    up = float_array("y", y, undefined=True)
    same_length("x", across, "y", up)
    defined = ~(np.isnan(across) | np.isnan(up))
    return np.minimum(across[defined], 1.0), up[defined], defined


@dataclass(frozen=True)
class FairnessIntervals:
    """Utility at five levels of fairness, minus the deterministic (Kim & Diaz 2025, tables 1, 6 to 12)."""

    edges: FloatArray
    """Vector [6]: 0, 0.2, 0.4, 0.6, 0.8, 1; interval i is [edges[i], edges[i + 1])."""
    values: FloatArray
    """Vector [5]: mean normalised EU − baseline; ``nan`` where no point lies."""
    counts: IntArray
    """Vector [5]: number of points in each interval."""
    deterministic: int
    """Number of points left out because their EE-D is 1."""
    undefined: int
    """Number of points left out because a value of theirs is ``nan``."""


def fairness_intervals(ee_d_norm: ArrayLike, eu_norm: ArrayLike, baseline: ArrayLike) -> FairnessIntervals:
    """Average the normalised utility within five intervals of normalised disparity, minus a baseline.

    The paper's form subtracts one number, the mean of the deterministic system over all queries. The queries
    in an interval are others than those of that mean, so a difference may only say that the interval holds
    easier queries. The paired form subtracts from each point the deterministic utility of the same query: it
    is the one to argue with.

    Args:
        ee_d_norm: vector [P] in [0, 1], one point for each query and α; ``nan`` where undefined.
        eu_norm: vector [P], normalised expected utility; ``nan`` where undefined.
        baseline: normalised expected utility of the deterministic system: one number, its mean (the paper's
            form), or a vector [P], that of each point's query (the paired form); ``nan`` where undefined.

    Source: Kim & Diaz 2025, §5, table 1; the paired form is ours.

    Raises:
        InvalidInput: no points, lengths that differ, disparity outside [0, 1], or an infinite value.
    """
    disparity = float_array("ee_d_norm", ee_d_norm, low=0.0, high=1.0 + _SLACK, undefined=True)
    utility = float_array("eu_norm", eu_norm, undefined=True)
    same_length("ee_d_norm", disparity, "eu_norm", utility)
    if np.ndim(baseline) == 0:
        level = np.full(len(utility), float(float_array("baseline", baseline, ndim=0)))
    else:
        level = float_array("baseline", baseline, undefined=True)
        same_length("eu_norm", utility, "baseline", level)
    # Searched, not divided: 0.6 // 0.2 is 2.0, and 3 * 0.2 is not 0.6.
    edges = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    defined = ~(np.isnan(disparity) | np.isnan(utility) | np.isnan(level))
    deterministic = defined & (disparity >= 1.0)
    inside = defined & (disparity < 1.0)
    interval = np.searchsorted(edges, disparity[inside], side="right") - 1
    counts = np.bincount(interval, minlength=5).astype(np.int64)
    sums = np.bincount(interval, weights=(utility - level)[inside], minlength=5)
    values = np.divide(sums, counts, out=np.full(5, np.nan), where=counts > 0)
    return FairnessIntervals(
        edges, values, counts, int(deterministic.sum()), len(defined) - int(defined.sum())
    )
