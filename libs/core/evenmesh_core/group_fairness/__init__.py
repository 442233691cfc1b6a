"""Group fairness of conversations and ranked lists against target distributions (Sakai 2023).

GFRC scores a conversation by the relevant nuggets of its system turns: how early they come (R), and how close
their distribution over groups comes to a target (GF). GFR does the same for a ranked list.
"""

from evenmesh_core.group_fairness.conversations import (
    AttributeFairness,
    ConversationFairness,
    Nugget,
    conversation,
    s_measure,
)
from evenmesh_core.group_fairness.divergences import Attribute, DivergenceName, divergence, jsd, nmd, rnod
from evenmesh_core.group_fairness.ranked_lists import RankedListFairness, ranked_list
from evenmesh_core.group_fairness.transcripts import (
    Annotation,
    Transcript,
    Turn,
    format_jsonl,
    parse_jsonl,
    parse_transcripts,
)

__all__ = [
    "Annotation",
    "Attribute",
    "AttributeFairness",
    "ConversationFairness",
    "DivergenceName",
    "Nugget",
    "RankedListFairness",
    "Transcript",
    "Turn",
    "conversation",
    "divergence",
    "format_jsonl",
    "jsd",
    "nmd",
    "parse_jsonl",
    "parse_transcripts",
    "ranked_list",
    "rnod",
    "s_measure",
]
