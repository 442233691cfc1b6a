"""A filter finds every text that was put in, however it is written, and few others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_filter import TextFilter, normal_form

ASKED = [f"Who wrote the play number {number}, and when?" for number in range(2_000)]
OTHERS = [f"Where was the painter number {number} born?" for number in range(20_000)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=40))
def test_what_was_put_in_is_found(texts: list[str]) -> None:
    found = TextFilter.of(texts)
    assert [one for one in texts if normal_form(one) and one not in found] == []
    assert found.count == len({normal_form(one) for one in texts} - {""})


@pytest.mark.parametrize(
    "changed",
    [
        "WHO wrote the play number 7, and when?",
        "  who wrote\nthe play number 7 and\twhen",
        "Who wrote the play number 7 — and when?!",
        "Ｗho wrote the play number ７, and when?",
    ],
)
def test_case_white_space_punctuation_and_width_do_not_hide_a_question(changed: str) -> None:
    assert changed in TextFilter.of(ASKED)


def test_another_question_is_found_about_as_rarely_as_stated() -> None:
    found = TextFilter.of(ASKED)
    assert found.false_positives == pytest.approx(0.001, rel=0.2)
    wrong = sum(one in found for one in OTHERS)
    assert wrong <= 20 + 4 * np.sqrt(20)  # four standard errors above one in a thousand
    assert len(found.bits) <= 2_000 * 14.4 / 8 + 1


def test_marks_of_a_script_are_part_of_a_word() -> None:
    assert "कि" not in TextFilter.of(["कु"])


def test_a_text_without_a_letter_is_never_in_it() -> None:
    found = TextFilter.of(["…", "?"])
    assert (found.count, len(found.bits), "?" in found, found.false_positives) == (0, 0, False, 0.0)


def test_the_bits_do_not_depend_on_the_order() -> None:
    assert TextFilter.of(ASKED).bits.tobytes() == TextFilter.of(reversed(ASKED)).bits.tobytes()


@pytest.mark.parametrize("share", [0.0, 0.6, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="false_positives"):
        TextFilter.of(["a"], false_positives=share)


@pytest.mark.parametrize(("hashes", "count"), [(0, 1), (31, 1), (10, -1)])
def test_sizes_out_of_range_are_refused(hashes: int, count: int) -> None:
    with pytest.raises(InvalidInput):
        TextFilter(np.zeros(8, np.uint8), hashes, count)
