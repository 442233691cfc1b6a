"""What the evaluator measures for callers that bring their own rankings, answers, votes or conversations.

One module per kind of question; each has the question as a dataclass and a function that answers it.
"""

from services.evaluator.evaluation.comparisons import compare_retrievers, compare_systems
from services.evaluator.evaluation.conversations import conversation
from services.evaluator.evaluation.exposures import exposure
from services.evaluator.evaluation.ranked_lists import ranked_list
from services.evaluator.evaluation.rankings import ranking_quality
from services.evaluator.evaluation.tradeoffs import tradeoff
from services.evaluator.evaluation.utilities import utility
from services.evaluator.evaluation.votes import Ballot, vote
from services.evaluator.evaluation.weights import search_weights

__all__ = [
    "Ballot",
    "compare_retrievers",
    "compare_systems",
    "conversation",
    "exposure",
    "ranked_list",
    "ranking_quality",
    "search_weights",
    "tradeoff",
    "utility",
    "vote",
]
