"""Plackett–Luce by definition, slowly: item by item over every ranking, with no code shared with evenmesh_core."""

import itertools
import math
from fractions import Fraction

import pytest


def ranking_probability(log_weights, ranking):
    left = list(range(len(log_weights)))
    probability = 1.0
    for item in ranking:
        # Beyond ±700 the item is certain to lose, or the other not to matter.
        gaps = (min(max(log_weights[i] - log_weights[item], -800), 700) for i in left)
        probability *= 1 / math.fsum(math.exp(gap) for gap in gaps)
        left.remove(item)
    return probability


@pytest.fixture
def enumerated():
    """From log-weights and a length to {ranking: probability}, over all rankings of that length."""

    def enumerate_rankings(log_weights, length):
        exact = [Fraction(float(w)) for w in log_weights]  # differences of 1e30 and 1 must not round
        return {
            ranking: ranking_probability(exact, ranking)
            for ranking in itertools.permutations(range(len(exact)), length)
        }

    return enumerate_rankings
