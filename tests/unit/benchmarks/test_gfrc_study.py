"""The study of conversations: its drop in two parts, its annotators, and its page by its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gfrc_study
from benchmarks.gfrc_study import Pair, split
from benchmarks.page import placed
from evenmesh_core.group_fairness import Transcript
from evenmesh_core.group_fairness.transcripts import Annotation, Turn

PAGE = Path(__file__).resolve().parents[3] / "docs" / "studies" / "gfrc.md"


def test_a_drop_is_split_by_hand() -> None:
    # Shares 3/4 and 1/4, means 0.5 and 0.4: by share −0.5 · 0.45, by fairness −0.1 · 0.5
    pair = Pair(np.array([0.5, 0.25, 0.75, 0.0]), np.array([0.4, 0.0, 0.0, 0.0]))
    assert split(pair) == pytest.approx((-0.225, -0.05))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_both_parts_are_the_whole_drop(values: list[tuple[float, float]]) -> None:
    fixed, dial = (np.array(one) for one in zip(*values, strict=True))
    assert sum(split(Pair(fixed, dial))) == pytest.approx(dial.mean() - fixed.mean(), abs=1e-12)


def test_annotators_err_at_their_rate_and_kappa_is_that_of_cohen() -> None:
    marks = tuple(Annotation(1, level, None, {}) for level in (0, 2) * 5_000)
    some = {"a": [Transcript("t", (Turn("system", 1, marks),))]}
    rng = np.random.default_rng(0)
    turned = {"a": gfrc_study._turned(some["a"], 0.1, rng)}
    before, after = gfrc_study._labels(some), gfrc_study._labels(turned)
    assert float(np.mean(before != after)) == pytest.approx(0.1, abs=0.015)
    assert gfrc_study._kappa(np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 0])) == pytest.approx(0.5)


def test_the_page_says_what_the_numbers_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert placed(page, gfrc_study.tables()) == page
