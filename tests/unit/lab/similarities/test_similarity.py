"""Matrices from pairs: symmetry, equal answers, and what is judged how often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.ensemble import containment_em, similarity_matrix
from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import token_f1
from evenmesh_lab.similarities import Models, Similarity, load
from evenmesh_lab.similarities.similarity import Check

_WORDS = st.lists(st.sampled_from(["rhine", "elbe", "the", "river", "!"]), max_size=4).map(" ".join)


class Recorded(Similarity):
    """Half the sum of the lengths over ten, out of range on purpose for long texts; remembers its pairs."""

    name = "recorded"

    def __init__(self) -> None:
        self.judged: list[tuple[str, str]] = []

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        pairs = [(texts[one], texts[other]) for one, other in zip(left, right, strict=True)]
        self.judged += pairs
        return np.array([(len(left) + len(right)) / 20 for left, right in pairs])


@given(answers=st.lists(_WORDS, min_size=1, max_size=6))
def test_strings_are_as_the_science_has_them_to_the_last_bit(answers: list[str]) -> None:
    for name, compare in (("token_f1", token_f1), ("containment_em", containment_em)):
        assert np.array_equal(load(name, Models()).matrix(answers), similarity_matrix(answers, compare))


def test_each_two_different_texts_are_judged_once() -> None:
    recorded = Recorded()
    matrix = recorded.matrix(["bb", "a", "bb", "ccc", "a"])
    assert sorted(recorded.judged) == [("a", "bb"), ("a", "ccc"), ("bb", "ccc")]
    # Lengths 2, 1, 2, 3, 1: (2 + 1)/20, ...; equal texts 1.
    assert matrix.tolist() == [
        [1, 3 / 20, 1, 5 / 20, 3 / 20],
        [3 / 20, 1, 3 / 20, 4 / 20, 1],
        [1, 3 / 20, 1, 5 / 20, 3 / 20],
        [5 / 20, 4 / 20, 5 / 20, 1, 4 / 20],
        [3 / 20, 1, 3 / 20, 4 / 20, 1],
    ]


def test_pairs_answer_in_order_whichever_way_round() -> None:
    recorded = Recorded()
    values = recorded.pairs([("b", "aa"), ("x", "x"), ("aa", "b"), ("", "b")])
    assert values.tolist() == [3 / 20, 1, 3 / 20, 1 / 20]
    assert sorted(recorded.judged) == [("", "b"), ("aa", "b")]


def test_values_stay_within_the_range() -> None:
    assert Recorded().pairs([("x" * 30, "y" * 30)]).tolist() == [1.0]


def test_nothing_to_compare() -> None:
    recorded = Recorded()
    assert recorded.pairs([]).shape == (0,)
    assert recorded.matrix(["alone"]).tolist() == [[1.0]]
    assert recorded.judged == []
    with pytest.raises(InvalidInput, match="answers"):
        recorded.matrix([])
