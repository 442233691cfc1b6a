"""Draws follow the tempered, truncated distribution, and nothing but seed and stream."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from evenmesh_generator.domain import Decoding
from evenmesh_generator.runtime.decoding.sampler import Sampler


def _draws(logits: list[float], decoding: Decoding, count: int = 4000) -> Counter[int]:
    sampler = Sampler(decoding, "stream")
    return Counter(sampler.draw(torch.tensor(logits)) for _ in range(count))


def test_draws_follow_the_tempered_distribution() -> None:
    """P(i) ∝ p_i^(1/T) with p = (.5, .3, .2) and T = 2."""
    weights = [0.5**0.5, 0.3**0.5, 0.2**0.5]
    counts = _draws([math.log(0.5), math.log(0.3), math.log(0.2)], Decoding(temperature=2.0, seed=5))
    expected = [4000 * weight / sum(weights) for weight in weights]
    assert chisquare([counts[0], counts[1], counts[2]], expected).pvalue > 0.001


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.01, {0}), (0.49, {0}), (0.51, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2})],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_the_mass(top_p: float, kept: set[int]) -> None:
    """p = (0.5, 0.3, 0.2): the masses are 0.5, 0.8 and 1."""
    logits = [math.log(0.5), math.log(0.3), math.log(0.2)]
    assert set(_draws(logits, Decoding(temperature=1.0, top_p=top_p, seed=1), 300)) == kept


def test_forbidden_tokens_are_never_drawn() -> None:
    counts = _draws([0.0, -math.inf, 0.0], Decoding(temperature=10.0, seed=3), 500)
    assert set(counts) == {0, 2}
