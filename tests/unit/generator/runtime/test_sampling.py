"""Draws follow the tempered, truncated distribution, and nothing but seed and stream."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from evenmesh_generator.domain import Decoding
from evenmesh_generator.runtime.decoding.sampler import Sampler
from tests.support.operators import Operators


def _draw(sampler: Sampler, scores: torch.Tensor) -> int:
    uniform = sampler.uniform()
    token, certain = sampler.pick(scores, uniform)
    return int(token if certain else sampler.pick_slowly(scores, uniform))


def _draws(logits: list[float], decoding: Decoding, count: int = 4000) -> Counter[int]:
    sampler = Sampler(decoding, "stream")
    return Counter(_draw(sampler, torch.tensor(logits)) for _ in range(count))


def test_draws_follow_the_tempered_distribution() -> None:
    """P(i) ∝ p_i^(1/T) with p = (.5, .3, .2) and T = 2."""
    weights = [0.5**0.5, 0.3**0.5, 0.2**0.5]
    counts = _draws([math.log(0.5), math.log(0.3), math.log(0.2)], Decoding(temperature=2.0, seed=5))
    expected = [4000 * weight / sum(weights) for weight in weights]
    assert chisquare([counts[0], counts[1], counts[2]], expected).pvalue > 0.001


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
@pytest.mark.parametrize("others", [2, 1000])
def test_the_coldest_draw_is_the_likeliest_token(temperature: float, others: int) -> None:
    logits = [*[0.0] * others, 30.0, *[0.0] * others]
    assert set(_draws(logits, Decoding(temperature=temperature, seed=2), 20)) == {others}


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


def _by_the_whole_vocabulary(scores: torch.Tensor, decoding: Decoding, uniform: float) -> int:
    """The definition: sort all tokens, keep the nucleus, pick by inverse distribution."""
    ordered, tokens = (scores.double() / decoding.temperature).softmax(-1).sort(descending=True, stable=True)
    mass = ordered.cumsum(-1)
    kept = min(int(torch.searchsorted(mass, decoding.top_p * float(mass[-1]))), len(mass) - 1)
    place = int(torch.searchsorted(mass, uniform * float(mass[kept]), right=True))
    return int(tokens[min(place, kept)])


@settings(max_examples=150, deadline=None)
@given(
    vocabulary=st.integers(1, 3000),
    spread=st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0]),
    temperature=st.sampled_from([0.3, 1.0, 3.0]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    rounded=st.booleans(),
    forbidden=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_draws_are_those_of_the_whole_vocabulary_sorted(
    *,
    vocabulary: int,
    spread: float,
    temperature: float,
    top_p: float,
    rounded: bool,
    forbidden: bool,
    seed: int,
) -> None:
    """Peaked, flat and tied: bfloat16 makes many scores equal, and the lower number comes first."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(vocabulary, generator=generator) * spread
    if rounded:
        scores = scores.bfloat16().float()
    if forbidden:
        scores[torch.rand(vocabulary, generator=generator) < 0.9] = -math.inf
        scores[seed % vocabulary] = 0.0
    decoding = Decoding(temperature=temperature, top_p=top_p, seed=seed)
    sampler, uniforms = Sampler(decoding, "s"), Sampler(decoding, "s")
    for _ in range(5):
        assert _draw(sampler, scores) == _by_the_whole_vocabulary(scores, decoding, uniforms.uniform())


def test_few_tokens_are_sorted() -> None:
    """50,000 tokens, a peaked distribution: no sort of more than 256."""
    scores = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) * 4
    sampler = Sampler(Decoding(temperature=1.0, seed=1), "s")
    with Operators() as operators:
        _, certain = sampler.pick(scores, 0.5)
    assert bool(certain)
    assert operators.largest["aten.sort"] == 256


def test_a_pick_among_the_unlikely_is_not_certain() -> None:
    """All 1,000 tokens are equally likely: the first 256 are any, and a quarter of the mass."""
    sampler = Sampler(Decoding(temperature=1.0), "s")
    for uniform in (0.1005, 0.9005):
        _, certain = sampler.pick(torch.zeros(1000), uniform)
        assert not bool(certain)
        assert int(sampler.pick_slowly(torch.zeros(1000), uniform)) == int(1000 * uniform)
