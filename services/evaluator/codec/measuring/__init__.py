"""Questions that callers bring with their own rankings, answers, votes or conversations, and what was
measured: one module per kind of question, with ``..._question`` reading and ``..._response`` writing."""

from services.evaluator.codec.measuring.comparisons import (
    retrievers_question,
    retrievers_response,
    systems_question,
    systems_response,
)
from services.evaluator.codec.measuring.conversations import conversation_question, conversation_response
from services.evaluator.codec.measuring.exposure import exposure_question, exposure_response
from services.evaluator.codec.measuring.ranked_lists import ranked_list_question, ranked_list_response
from services.evaluator.codec.measuring.rankings import rankings_question, rankings_response
from services.evaluator.codec.measuring.tradeoffs import tradeoff_question, tradeoff_response
from services.evaluator.codec.measuring.utility import utility_question, utility_response
from services.evaluator.codec.measuring.votes import (
    anytime_answer,
    anytime_question,
    anytime_response,
    search_question,
    search_response,
    vote_question,
    vote_response,
)

__all__ = [
    "anytime_answer",
    "anytime_question",
    "anytime_response",
    "conversation_question",
    "conversation_response",
    "exposure_question",
    "exposure_response",
    "ranked_list_question",
    "ranked_list_response",
    "rankings_question",
    "rankings_response",
    "retrievers_question",
    "retrievers_response",
    "search_question",
    "search_response",
    "systems_question",
    "systems_response",
    "tradeoff_question",
    "tradeoff_response",
    "utility_question",
    "utility_response",
    "vote_question",
    "vote_response",
]
