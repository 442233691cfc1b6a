"""Group fairness and relevance of a ranked list (GFR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, float_array, number, same_length
from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness.divergences import Attribute, distribution, divergence

_IRBU_PERSISTENCE = 0.99


@dataclass(frozen=True)
class RankedListFairness:
    """Relevance and group fairness of a ranked list."""

    score: float
    """GFR (equation 1), in [0, 1] for weights that sum to 1."""
    relevance: float
    """Σ_k abandon(k) · utility(k): ERR or iRBU."""
    group_fairness: Mapping[str, float]
    """For each attribute Σ_k abandon(k) · DistrSim(k)."""
    abandonment: FloatArray
    """Vector [n]: share of the users who stop at each rank, 0 where the document is not relevant."""
    similarity: Mapping[str, FloatArray]
    """For each attribute, vector [n]: 1 − divergence of the relevant documents so far; ``nan`` before the
    first."""


def ranked_list(
    gains: ArrayLike,
    memberships: Mapping[str, ArrayLike],
    attributes: Mapping[str, Attribute],
    *,
    max_gain: float,
    utility: Literal["err", "irbu"] = "err",
    weights: Mapping[str, float] | None = None,
    check: Callable[[], None] | None = None,
) -> RankedListFairness:
    """Score a ranked list for the users who abandon it at each rank.

    abandon(k) = g_k / (g_max + 1) · Π_{j<k} (1 − g_j / (g_max + 1)). The user who stops at rank k gets
    utility 1 / k ("err") or 0.99^k ("irbu"), and has seen the groups of the relevant documents down to k.

    Args:
        gains: vector [n] of gains from 0 to ``max_gain``, best-ranked first.
        memberships: for each attribute a matrix [n, C]: to what degree each document belongs to each group;
            rows of documents that are not relevant are ignored.
        attributes: the sets of groups; none scores relevance alone.
        max_gain: largest gain possible, above 0.
        utility: "err" or "irbu".
        weights: weight from 0 of each attribute, and of the utility under the key "utility"; None weighs all
            alike, sum 1.
        check: called before each rank of each attribute; what it raises ends the computation.

    Source: Sakai 2023, §2.1, equation 1; Sakai, Kim & Kang 2023.

    Raises:
        InvalidInput: a gain or membership out of range, memberships that do not match the attributes or
            gains, an unknown utility, or weights for other things than the utility and the attributes.
    """
    most = number("max_gain", max_gain)
    if most <= 0:
        raise InvalidInput("max_gain", max_gain, "numbers above 0")
    gained = float_array("gains", gains, low=0.0, high=most)
    if utility not in ("err", "irbu"):
        raise InvalidInput("utility", utility, "'err' or 'irbu'")
    shares = _weights(weights, attributes)

    stops = gained / (most + 1.0)
    abandonment = stops * np.concatenate([[1.0], np.cumprod(1.0 - stops)[:-1]])
    ranks = np.arange(1, len(gained) + 1)
    reward = 1.0 / ranks if utility == "err" else np.power(_IRBU_PERSISTENCE, ranks)
    relevance = float(abandonment @ reward)

    similarity: dict[str, FloatArray] = {}
    fairness: dict[str, float] = {}
    for name, attribute in attributes.items():
        if name not in memberships:
            raise InvalidInput("memberships", sorted(memberships), f"a matrix for attribute {name!r}")
        similarity[name] = _similarity(name, attribute, memberships[name], gained, check)
        fairness[name] = float(abandonment @ np.nan_to_num(similarity[name]))
    score = shares["utility"] * relevance + sum(shares[name] * fairness[name] for name in attributes)
    return RankedListFairness(score, relevance, fairness, abandonment, similarity)


def _similarity(
    name: str,
    attribute: Attribute,
    memberships: ArrayLike,
    gains: FloatArray,
    check: Callable[[], None] | None,
) -> FloatArray:
    where = f"memberships[{name!r}]"
    gold = distribution(f"attributes[{name!r}].gold", attribute.gold)
    matrix = float_array(where, memberships, ndim=2)
    same_length("gains", gains, where, matrix)
    similarity = np.full(len(gains), np.nan)
    total = np.zeros(len(gold))
    relevant = 0
    for rank, gain in enumerate(gains):
        if check is not None:
            check()
        if gain > 0:
            membership = distribution(f"{where}[{rank}]", matrix[rank])
            same_length("gold", gold, f"{where}[{rank}]", membership)
            total += membership
            relevant += 1
        if relevant:
            similarity[rank] = 1.0 - divergence(attribute.divergence, total / relevant, gold)
    return similarity


def _weights(weights: Mapping[str, float] | None, attributes: Mapping[str, Attribute]) -> Mapping[str, float]:
    names = ["utility", *attributes]
    if "utility" in attributes:
        raise InvalidInput("attributes", "utility", "names other than 'utility', which is taken")
    if weights is None:
        return dict.fromkeys(names, 1.0 / len(names))
    if set(weights) != set(names):
        raise InvalidInput("weights", sorted(weights), f"one weight for each of {', '.join(names)}")
    return {name: number(f"weights[{name!r}]", weight, low=0.0) for name, weight in weights.items()}
