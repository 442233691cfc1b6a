"""Checks of requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField

NAN, INF = float("nan"), float("inf")


def field_of(function: Any, *args: Any, **kwargs: Any) -> str | None:
    with pytest.raises(InvalidField) as refused:
        function(*args, **kwargs)
    return refused.value.field


@pytest.mark.parametrize("value", ["", " \t\n", "\u2003", "x" * 8193, "ü" * 4097])
def test_text_that_is_empty_blank_or_too_long_is_refused(value: str) -> None:
    assert field_of(checks.text, "query", value) == "query"


@pytest.mark.parametrize("value", ["a", " a ", "x" * 8192, "ü" * 4096])
def test_other_text_is_returned(value: str) -> None:
    assert checks.text("query", value) == value


def test_text_has_the_limit_it_is_given() -> None:
    assert checks.text("id", "abc", max_bytes=3) == "abc"
    assert field_of(checks.text, "id", "abcd", max_bytes=3) == "id"


def test_what_is_bounded_alone_may_be_empty() -> None:
    for value in ("", " ", "ü" * 4):
        assert checks.at_most("model", value, 8) == value
    with pytest.raises(InvalidField, match="must be at most 8 bytes, has 10"):
        checks.at_most("model", "ü" * 5, 8)


@pytest.mark.parametrize("value", ["a", "0", "a-b_c", "x" * 64])
def test_names(value: str) -> None:
    assert checks.name("collection", value) == value


@pytest.mark.parametrize("value", ["", "A", "-a", "_a", "a b", "a/b", "..", "a\n", "ä", "x" * 65, "x" * 9999])
def test_other_names_are_refused_shortly(value: str) -> None:
    with pytest.raises(InvalidField) as refused:
        checks.name("collection", value)
    assert refused.value.field == "collection"
    assert len(refused.value.message) < 250


@given(st.floats(allow_nan=True), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_between_takes_what_is_between(value: float, low: float, high: float) -> None:
    if low <= value <= high:
        assert checks.between("k", value, low, high) == value
    else:
        assert field_of(checks.between, "k", value, low, high) == "k"


def test_between_tells_range_and_value() -> None:
    with pytest.raises(InvalidField, match=r"k: must be in \[1, 1000\], got 0"):
        checks.between("k", 0, 1, 1000)
    assert field_of(checks.between, "alpha", NAN, 0, 100) == "alpha"


def test_between_tells_large_bounds_exactly() -> None:
    with pytest.raises(InvalidField, match=r"\[0, 9223372036854775807\], got 9223372036854775808"):
        checks.between("seed", 2**63, 0, 2**63 - 1)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_is_refused(value: float) -> None:
    assert field_of(checks.finite, "usefulness", value) == "usefulness"


def test_what_is_finite_is_returned() -> None:
    assert checks.finite("usefulness", -0.5) == -0.5


GOOD = Passage(id="a", text="some text")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Passage(text="x"), "id"),
        (Passage(id="x" * 257, text="x"), "id"),
        (Passage(id="ü" * 129, text="x"), "id"),
        (Passage(id="a\nb", text="x"), "id"),
        (Passage(id="a\x85b", text="x"), "id"),
        (Passage(id="b"), "text"),
        (Passage(id="b", text="x" * 65_537), "text"),
        (Passage(id="b", title="x" * 32_769, text="x" * 32_768), "text"),
        (Passage(id="b", text="x", attributes={str(i): "" for i in range(65)}), "attributes"),
        (Passage(id="b", text="x", attributes={"k": "x" * 1024}), "attributes"),
    ],
)
def test_a_passage_out_of_bounds_is_named(bad: Passage, field: str) -> None:
    assert field_of(checks.passages, "passages", [GOOD, bad]) == f"passages[1].{field}"


def test_passages_at_their_bounds_are_taken() -> None:
    checks.passages(
        "passages",
        [
            Passage(id="x" * 256, text="x" * 65_536),
            Passage(id="b", title="only a title"),
            Passage(id="c", text="x", attributes={f"{i:02}": "x" * 1022 for i in range(64)}),
        ],
    )


def test_a_repeated_id_is_named_with_the_first() -> None:
    with pytest.raises(InvalidField, match=r"passages\[2\].id: 'a' is the id of passages\[0\] too"):
        checks.passages("passages", [GOOD, Passage(id="b", text="x"), GOOD])


@pytest.mark.parametrize("count", [0, 1001])
def test_too_few_and_too_many_passages_are_refused(count: int) -> None:
    many = [Passage(id=str(i), text="x") for i in range(count)]
    assert field_of(checks.passages, "candidates.passages", many) == "candidates.passages"
    checks.passages("candidates.passages", many, min=0, max=2000)
