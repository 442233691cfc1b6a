"""Measures of rankings, answers, votes and conversations that come with a request.

One module per measure. Each function checks a request against the contract, computes with
:mod:`evenmesh_core`, and returns the response. All raise ``InvalidField`` where a bound of the contract is
broken, and ``InvalidInput`` where arguments do not fit each other.
"""

from evenmesh_evaluator.measures.comparisons import compare_retrievers, compare_systems
from evenmesh_evaluator.measures.conversations import conversation
from evenmesh_evaluator.measures.exposure import exposure
from evenmesh_evaluator.measures.ranked_lists import ranked_list
from evenmesh_evaluator.measures.rankings import rankings
from evenmesh_evaluator.measures.tradeoff import tradeoff
from evenmesh_evaluator.measures.utility import utility
from evenmesh_evaluator.measures.votes import AnytimeVote, vote
from evenmesh_evaluator.measures.weight_search import search_weights

__all__ = [
    "AnytimeVote",
    "compare_retrievers",
    "compare_systems",
    "conversation",
    "exposure",
    "ranked_list",
    "rankings",
    "search_weights",
    "tradeoff",
    "utility",
    "vote",
]
