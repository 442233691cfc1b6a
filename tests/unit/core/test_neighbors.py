"""Passages support similar ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from evenmesh_core.errors import InvalidInput
from evenmesh_core.fusion import log_odds_fusion
from evenmesh_core.neighbors import MOST_CHARACTERS, support, text_vectors

WORDS = st.lists(st.sampled_from(["Fox", "fox", "whale", "port", "7070", ""]), max_size=6).map(" ".join)


def test_vectors_by_hand() -> None:
    """fox is in two of two texts: log(3/2); red in one, twice: (1 + log 2) · log 3; blue: log 3."""
    vectors = text_vectors(["Red red FOX", "fox, blue"]).toarray()
    red, fox, blue = (1 + math.log(2)) * math.log(3), math.log(1.5), math.log(3)
    expected = [
        np.array([red, fox, 0]) / math.hypot(red, fox),
        np.array([0, fox, blue]) / math.hypot(fox, blue),
    ]
    assert vectors == pytest.approx(np.array(expected))


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    beginning = "a " * (MOST_CHARACTERS // 2)
    assert text_vectors([beginning + "b", "c"]).toarray()[0].tolist() == [1.0, 0.0]


def test_support_by_hand() -> None:
    """Cosines 0.6 of the first two, 0 of others; weights 2 : 1 : 1 of 4.

    The first has (0.6 · 1 + 0) / 2, the second 0.6 · 2 / 3, the third 0.
    """
    vectors = csr_array(np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]))
    values = np.array([0.3, 0.4, 0.0])
    found = support(np.array([math.log(2), 0.0, 0.0]), vectors)
    assert found == pytest.approx((values - values.mean()) / values.std(), abs=1e-4)


def test_hardly_different_resemblance_is_not_blown_up() -> None:
    """0.001 of two and 0 of the third: the deviation counts as 0.01."""
    vectors = csr_array(np.array([[1.0, 0.0, 0.0], [0.002, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    assert np.abs(support(np.zeros(3), vectors)).max() < 0.1


@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
def test_support_is_bounded_and_knows_no_order(texts: list[str], data: st.DataObject) -> None:
    odds = np.array(data.draw(st.lists(st.floats(-1000, 1000), min_size=len(texts), max_size=len(texts))))
    found = support(odds, text_vectors(texts))
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(0.0, abs=1e-6)
    order = data.draw(st.permutations(range(len(texts))))
    again = support(odds[order], text_vectors([texts[at] for at in order]))
    # Cosines are rounded to six decimals, and the deviation is 0.01 at least.
    assert again == pytest.approx(found[order], abs=1e-3)


@pytest.mark.parametrize("texts", [["fox"], ["fox", "fox whale"], ["same"] * 5, ["", "", ""]])
def test_equal_resemblance_supports_nobody(texts: list[str]) -> None:
    assert support(np.arange(len(texts), dtype=float), text_vectors(texts)) == pytest.approx(0.0)


def test_fusion_adds_the_support() -> None:
    vectors = text_vectors(["red fox", "red fox", "blue"])
    chances = np.array([0.5, 0.5, 0.5])
    fused = log_odds_fusion(chances, np.zeros(3), 1.0, neighbors=2.0, vectors=vectors)
    odds = 2.0 * support(np.zeros(3), vectors)
    assert fused == pytest.approx(1 / (1 + np.exp(-odds)))
    alone = log_odds_fusion(chances, np.zeros(3), 1.0, neighbors=0.0, vectors=vectors)
    assert alone.tolist() == [0.5] * 3


def test_wrong_input_is_named() -> None:
    vectors = text_vectors(["red", "blue"])
    with pytest.raises(InvalidInput, match="vectors"):
        support(np.zeros(3), vectors)
    with pytest.raises(InvalidInput, match="texts"):
        text_vectors([])
    with pytest.raises(InvalidInput, match="log_odds"):
        support(np.array([0.0, math.nan]), vectors)
    with pytest.raises(InvalidInput, match="vectors"):
        log_odds_fusion(np.array([0.5]), np.array([0.0]), 1.0, neighbors=1.0)
    with pytest.raises(InvalidInput, match="neighbors"):
        log_odds_fusion(np.array([0.5]), np.array([0.0]), 1.0, neighbors=-1.0)
