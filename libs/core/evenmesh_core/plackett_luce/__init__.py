"""Stochastic retrieval: Plackett–Luce policies over retrieval scores (Kim & Diaz 2025, §3.2).

A ranking is drawn item by item, each with probability proportional to its weight among the items left.
"""

from evenmesh_core.plackett_luce.inclusion import inclusion_probabilities
from evenmesh_core.plackett_luce.likelihood import log_probability
from evenmesh_core.plackett_luce.policy import MAX_ALPHA, log_weights, normalize_scores
from evenmesh_core.plackett_luce.sampling import Draws, draw_from_scores, draw_rankings, sample_rankings
from evenmesh_core.plackett_luce.targets import Disparity, RelevanceLoss, Target, TargetedPolicy, policy_for

__all__ = [
    "MAX_ALPHA",
    "Disparity",
    "Draws",
    "RelevanceLoss",
    "Target",
    "TargetedPolicy",
    "draw_from_scores",
    "draw_rankings",
    "inclusion_probabilities",
    "log_probability",
    "log_weights",
    "normalize_scores",
    "policy_for",
    "sample_rankings",
]
