"""Votes among the answers of several retrievers, and how retrievers disagree (Li et al. 2024).

The reader answers a question once for each of M retrievers; the answers vote by their similarity to each
other.
"""

from evenmesh_core.ensemble.anytime import AnytimeVote, anytime_vote
from evenmesh_core.ensemble.error_kinds import (
    ErrorIndicators,
    ErrorWinRatios,
    error_indicators,
    error_relative_win_ratio,
)
from evenmesh_core.ensemble.similarities import (
    containment_em,
    normalized_containment,
    similarity_matrix,
)
from evenmesh_core.ensemble.votes import Pooling, Vote, agreement, agreement_of, vote
from evenmesh_core.ensemble.weight_search import WeightSearch, search_weights
from evenmesh_core.ensemble.win_ratios import UpperBounds, WinRatios, relative_win_ratio, upper_bound

__all__ = [
    "AnytimeVote",
    "ErrorIndicators",
    "ErrorWinRatios",
    "Pooling",
    "UpperBounds",
    "Vote",
    "WeightSearch",
    "WinRatios",
    "agreement",
    "agreement_of",
    "anytime_vote",
    "containment_em",
    "error_indicators",
    "error_relative_win_ratio",
    "normalized_containment",
    "relative_win_ratio",
    "search_weights",
    "similarity_matrix",
    "upper_bound",
    "vote",
]
