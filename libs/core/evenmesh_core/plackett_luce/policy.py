"""From retrieval scores to the log-weights of a Plackett–Luce policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, float_array, number
from evenmesh_core.errors import InvalidInput

MAX_ALPHA = 100.0
"""Largest temperature parameter: beyond it every score gap that matters makes the ranking deterministic."""


def normalize_scores(scores: ArrayLike) -> FloatArray:
    """Min–max normalise the retrieval scores of one query to [1, 2].

    Args:
        scores: vector [n] of finite retrieval scores of any sign.

    Returns:
        Vector [n] in [1, 2]; all 1.0 where the scores do not differ, which makes the policy uniform.

    Source: Kim & Diaz 2025, §3.2 and footnote 2 (whose released code divides 0 by 0 on equal scores).

    Raises:
        InvalidInput: not a non-empty vector of finite numbers.
    """
    array = float_array("scores", scores)
    low, high = array.min(), array.max()
    if low == high:
        return np.ones_like(array)
    with np.errstate(over="ignore"):
        span = high - low
    if np.isinf(span):  # scores near both ends of float64, where halving is exact
        array, low, span = array / 2, low / 2, high / 2 - low / 2
    normalized: FloatArray = 1.0 + (array - low) / span
    return normalized


def log_weights(scores: ArrayLike, alpha: float) -> FloatArray:
    """Return each item's log-weight s̄^α: the probability to come next is proportional to exp(s̄^α).

    Args:
        scores: vector [n] of finite retrieval scores of any sign.
        alpha: sharpness in [0, 100]; 0 is the uniform policy, 1 to 8 are the paper's, 100 is as good as
            sorting.

    Returns:
        Vector [n] of log-weights in [1, 2^α]. At α = 100 that is 1e30, so exponentiate differences only.

    Source: Kim & Diaz 2025, §3.2.1, equation 2.

    Raises:
        InvalidInput: scores as in :func:`normalize_scores`; alpha not finite, negative or above 100.
    """
    exponent = temperature(alpha)
    weights: FloatArray = normalize_scores(scores) ** exponent
    return weights


def temperature(alpha: float) -> float:
    """Return alpha, checked to be a number that a policy may have.

    Raises:
        InvalidInput: not finite, negative or above 100.
    """
    try:
        return number("alpha", alpha, low=0.0, high=MAX_ALPHA)
    except InvalidInput as error:
        allowed = "0 (uniform) to 100; above that the ranking is deterministic: rank by score instead"
        raise InvalidInput("alpha", alpha, allowed) from error
