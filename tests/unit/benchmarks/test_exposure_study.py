"""The study of exposure without a generator: its measures by hand, and its page by its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("torch")

from benchmarks.exposure_study import measures, tables, track
from benchmarks.exposure_study.measures import FIXED, measured
from benchmarks.exposure_study.sets import Ranked
from benchmarks.page import placed

PAGE = Path(__file__).resolve().parents[3] / "docs" / "studies" / "exposure.md"


def _row(difference: float, low: float, high: float, p: float, dial: str) -> dict[str, str]:
    found = {"difference": difference, "low": low, "high": high, "p": p}
    return {
        "data": "d",
        "system": "s",
        "dial": dial,
        "queries": "50",
        **{name: str(value) for name, value in found.items()},
    }


def test_attention_of_the_track_is_that_of_its_evaluation() -> None:
    # Relevant, not, relevant: 0.7; nobody stops; 0.5² · (1 − 0.7) · 0.7
    found = track.attention(np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    assert found == pytest.approx(np.array([[0.7, 0.0, 0.0525], [0.0, 0.0, 0.175]]))


def test_papers_without_a_group_are_taken_out_of_the_ranking() -> None:
    # By id: a (relevant, unlabelled), b (relevant), c. Utility counts a; the groups' exposure begins with b.
    stream = [(2.0, ["a", "b", "c"], [True, True, False])]
    found = track.outcome(stream, {"b": ["x"], "c": ["y"]}, track.BY_ID)
    assert found.utility == pytest.approx(0.7 + 0.5 * 0.3 * 0.7)
    assert found.unfairness == pytest.approx(0.0)  # all exposure and all relevance is x's


def test_one_order_of_equals_is_unfairer_than_shuffling_them() -> None:
    stream = [(1.0, ["a", "b"], [True, True])]
    groups = {"a": ["x"], "b": ["y"]}
    fixed = track.outcome(stream, groups, track.BY_ID)
    # x gets 0.7 and y 0.105, of which the shares are 0.8696 and 0.1304, and 0.5 of the relevance is due to each
    assert fixed.unfairness == pytest.approx(0.3696 * 2**0.5, abs=1e-3)
    assert track.outcome(stream, groups, 8.0).unfairness < 0.05


def test_a_dial_spreads_exposure_and_no_sampling_is_its_limit() -> None:
    scores = np.linspace(3.0, 1.0, 12)
    useful = np.zeros(12, dtype=bool)
    useful[[0, 11]] = True
    one = [Ranked("q", scores, useful, ("female", *["neutral"] * 10, "male"))]
    fixed, even = measured(one, FIXED), measured(one, 0.0)
    assert fixed.disparity[0] == 1.0
    assert fixed.groups.tolist() == [[1.0, 0.0, 0.0]]
    assert even.groups == pytest.approx(np.array([[10 / 12, 10 / 12, 0.0]]))
    # EE-R over its bound: both relevant ones of ten places are due an exposure of 1, the others 0.8.
    assert even.relevance[0] == pytest.approx((2 + 10 * 0.8) * 10 / 12 / (2 + 8 * 0.8))
    assert measured(one, 100.0).groups == pytest.approx(fixed.groups, abs=1e-6)
    nothing = measured([Ranked("q", np.array([]), np.array([], dtype=bool))], 1.0)
    assert np.isnan(nothing.relevance[0])


def test_claims_are_decided_by_the_rules_of_the_plan() -> None:
    others = [_row(-0.2, -0.3, -0.1, 0.001, f"{one:g}") for one in measures.ALPHAS if one not in (4.0, 8.0)]
    steep = _row(0.1, 0.05, 0.15, 0.001, "8 − 1")
    kept = _row(-0.01, -0.025, 0.005, 0.2, "4")
    (found,) = tables.decided([*others, kept, _row(0.02, 0.01, 0.03, 0.001, "8"), steep])
    assert [found[one] for one in ("", " ", "  ")] == ["holds", "holds", "holds"]
    lost = _row(-0.05, -0.06, -0.04, 0.001, "4")
    chance = _row(0.02, -0.01, 0.05, 0.3, "8")
    (found,) = tables.decided([*others, lost, chance, steep | {"p": "0.2"}])
    assert [found[one] for one in ("", " ", "  ")] == ["not shown", "fails", "not shown"]
    (found,) = tables.decided([*others, lost | {"high": "-0.02"}, chance, steep])
    assert found[" "] == "open"


def test_the_page_says_what_the_numbers_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert placed(page, tables.tables()) == page
