"""Fusion by rank."""

import numpy as np
import pytest

from services.retriever.backends.hybrid import _fused
from services.retriever.domain import Scored


def scored(rows: list[int], scores: list[float]) -> Scored:
    return Scored(np.array(rows), np.array(scores))


def test_ranks_are_added_up() -> None:
    fused = _fused(scored([3, 1], [9.0, 2.0]), scored([1, 3, 0], [0.9, 0.8, 0.1]), 3)
    assert fused.rows.tolist() == [1, 3, 0]  # 1 and 3 tie: by ascending row
    assert fused.scores.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 62, 1 / 63])


def test_passages_without_a_common_term_have_no_lexical_rank() -> None:
    fused = _fused(scored([2, 0, 1], [1.5, 0.0, 0.0]), scored([1, 0, 2], [0.9, 0.5, 0.1]), 3)
    assert fused.rows.tolist() == [2, 1, 0]
    assert fused.scores.tolist() == pytest.approx([1 / 61 + 1 / 63, 1 / 61, 1 / 62])


def test_the_pool_is_cut() -> None:
    fused = _fused(scored([0], [1.0]), scored([1, 2, 0], [0.9, 0.5, 0.1]), 2)
    assert fused.rows.tolist() == [0, 1]
