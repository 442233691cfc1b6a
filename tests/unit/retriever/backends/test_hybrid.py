"""Fusion by rank and by score."""

from collections.abc import Sequence

import numpy as np
import pytest

from evenmesh_retriever.backends.hybrid import Component, Fusion, HybridRetriever
from evenmesh_retriever.domain import Filter, Passage, RetrieverInfo, Scored
from evenmesh_retriever.ports import Snapshot
from evenmesh_retriever.steps import Steps, finish

PASSAGES = [Passage(str(number), "", "") for number in range(4)]


def scored(rows: list[int], scores: list[float]) -> Scored:
    return Scored(np.array(rows, dtype=np.int64), np.array(scores))


class Fixed:
    """A retriever that always says the same."""

    def __init__(self, found: Scored, note: str = "") -> None:
        self._found = found
        self._note = note
        self.info = RetrieverInfo("fixed", "", "", "", "cpu")

    def prepare(self, snapshot: Snapshot) -> None:
        """Nothing to do."""

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        return Scored(self._found.rows[:n], self._found.scores[:n])

    def note(self, snapshot: Snapshot) -> str:
        return self._note

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        yield
        return self._found

    def work(self, sizes: Sequence[int]) -> int:
        return sum(sizes)


def hybrid(*components: tuple[Scored, float, bool], fusion: Fusion | None = None) -> HybridRetriever:
    info = RetrieverInfo("hybrid", "", "", "", "cpu")
    made = [Component(Fixed(found), weight, is_sparse) for found, weight, is_sparse in components]
    return HybridRetriever(info, made, fusion or Fusion())


def test_ranks_are_added_up() -> None:
    sides = [scored([3, 1], [9.0, 2.0]), scored([1, 3, 0], [0.9, 0.8, 0.1])]
    fused = Fusion().fused(sides, [1, 1], 3)
    assert fused.rows.tolist() == [1, 3, 0]  # 1 and 3 tie: by ascending row
    assert fused.scores.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 62, 1 / 63])


def test_weights_and_k_are_those_given() -> None:
    sides = [scored([3, 1], [9.0, 2.0]), scored([1, 3, 0], [0.9, 0.8, 0.1])]
    fused = Fusion(k=10).fused(sides, [1, 2], 3)
    assert fused.rows.tolist() == [1, 3, 0]
    assert fused.scores.tolist() == pytest.approx([1 / 12 + 2 / 11, 1 / 11 + 2 / 12, 2 / 13])


def test_scores_are_brought_to_one_scale_and_added_up() -> None:
    sides = [scored([3, 1, 2], [9.0, 4.0, 1.0]), scored([1, 3, 0], [0.9, 0.8, 0.1])]
    fused = Fusion(method="score").fused(sides, [1, 0.5], 4)
    one = {3: 1.0, 1: (4 - 1) / (9 - 1), 2: 0.0}
    other = {1: 1.0, 3: (0.8 - 0.1) / (0.9 - 0.1), 0: 0.0}
    expected = {row: one.get(row, 0) + 0.5 * other.get(row, 0) for row in range(4)}
    assert fused.rows.tolist() == [3, 1, 0, 2]
    assert fused.scores.tolist() == pytest.approx([expected[row] for row in (3, 1, 0, 2)])


def test_standardized_scores_are_added_up() -> None:
    """What the first has not found shares nothing; what the second has not is below its pool."""
    lexical, dense = scored([3, 1], [6.0, 3.0]), scored([1, 2, 0], [0.9, 0.8, 0.1])
    fused = Fusion(method="standard").fused([lexical, dense], [1, 2], 4, [0.0, 0.1])
    one = np.array([0.0, 3.0, 0.0, 6.0])  # rows 0 to 3
    other = np.array([0.1, 0.9, 0.8, 0.1])
    expected = (one - 2.25) / one.std() + 2 * (other - 0.475) / other.std()
    order = np.argsort(-expected)
    assert fused.rows.tolist() == order.tolist() == [1, 2, 3, 0]
    assert fused.scores.tolist() == pytest.approx(expected[order].tolist())


def test_one_match_counts_in_standardized_scores() -> None:
    lexical, dense = scored([2, 0, 1, 3], [1.5, 0.0, 0.0, 0.0]), scored([1, 0, 2, 3], [0.9, 0.9, 0.9, 0.9])
    found = finish(
        hybrid((lexical, 1, True), (dense, 1, False), fusion=Fusion("standard")).rank(PASSAGES, "q")
    )
    assert found.rows.tolist() == [2, 0, 1, 3]
    # Mean 0.375, standard deviation 0.6495; equal cosines say nothing.
    assert found.scores.tolist() == pytest.approx([1.7320508, -0.5773503, -0.5773503, -0.5773503])


def test_passages_without_a_common_term_have_no_lexical_rank() -> None:
    lexical, dense = scored([2, 0, 1, 3], [1.5, 0.0, 0.0, 0.0]), scored([1, 0, 2, 3], [0.9, 0.5, 0.1, -0.2])
    found = finish(hybrid((lexical, 1, True), (dense, 1, False)).rank(PASSAGES, "q"))
    assert found.rows.tolist() == [2, 1, 0, 3]
    assert found.scores.tolist() == pytest.approx([1 / 61 + 1 / 63, 1 / 61, 1 / 62, 1 / 64])


def test_passages_that_nothing_matches_come_last() -> None:
    lexical = scored([2, 0, 1, 3], [1.5, 0.0, 0.0, 0.0])
    for fusion in (Fusion(), Fusion(method="score")):
        found = finish(hybrid((lexical, 1, True), (lexical, 2, True), fusion=fusion).rank(PASSAGES, "q"))
        assert found.rows.tolist() == [2, 0, 1, 3]
        assert found.scores[0] > 0
        assert found.scores[1:].tolist() == [0, 0, 0]


def test_its_work_is_that_of_all_components() -> None:
    side = scored([0], [1.0])
    assert hybrid((side, 1, True), (side, 1, False)).work([10, 20]) == 60


def test_the_pool_is_cut() -> None:
    fused = Fusion().fused([scored([0], [1.0]), scored([1, 2, 0], [0.9, 0.5, 0.1])], [1, 1], 2)
    assert fused.rows.tolist() == [0, 1]


def test_it_says_how_it_fuses() -> None:
    assert Fusion(k=60).description == "reciprocal rank fusion (k=60)"
    assert Fusion(method="score").description == "min-max score fusion"
    assert Fusion(method="standard").description == "standardized score fusion"
