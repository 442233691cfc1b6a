"""Group fairness and relevance of a ranked list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ragcore import group_fairness


@dataclass(frozen=True, slots=True)
class RankedListQuestion:
    """Gains [n] of the documents, best first, and by attribute their memberships [n, C] and the target."""

    gains: Sequence[float]
    memberships: Mapping[str, Sequence[Sequence[float]]]
    attributes: Mapping[str, group_fairness.Attribute]
    max_gain: float
    utility: Literal["err", "irbu"]
    weights: Mapping[str, float] | None


def ranked_list(question: RankedListQuestion) -> group_fairness.RankedListFairness:
    """GFR of a ranked list (GFRC, equation 1).

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    return group_fairness.ranked_list(
        question.gains,
        question.memberships,
        question.attributes,
        max_gain=question.max_gain,
        utility=question.utility,
        weights=question.weights,
    )
