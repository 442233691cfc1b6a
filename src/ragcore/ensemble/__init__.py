"""Votes among the answers of several retrievers, and how retrievers disagree (ensemble-of-retrievers).

The reader answers a question once for each of M retrievers; the answers vote by their similarity to each
other.
"""

from ragcore.ensemble.anytime import AnytimeVote, anytime_vote
from ragcore.ensemble.error_kinds import (
    ErrorIndicators,
    ErrorWinRatios,
    error_indicators,
    error_relative_win_ratio,
)
from ragcore.ensemble.similarities import containment_em, similarity_matrix
from ragcore.ensemble.votes import Pooling, Vote, agreement, vote
from ragcore.ensemble.weight_search import WeightSearch, search_weights
from ragcore.ensemble.win_ratios import UpperBounds, WinRatios, relative_win_ratio, upper_bound

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
    "anytime_vote",
    "containment_em",
    "error_indicators",
    "error_relative_win_ratio",
    "relative_win_ratio",
    "search_weights",
    "similarity_matrix",
    "upper_bound",
    "vote",
]
