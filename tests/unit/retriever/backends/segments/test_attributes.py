"""Which rows of a segment meet conditions on their attributes."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest

from evenmesh_retriever.backends.segments.files import attributes
from evenmesh_retriever.backends.segments.files.attributes import AttributeIndex
from evenmesh_retriever.domain import AnyOf, Condition, NumberRange, Passage, number_of

VALUES = [
    *(
        "",
        "?",
        "nan",
        "-NAN",
        "inf",
        "-inf",
        "1e999",
        "1e-999",
        "0",
        "-0",
        "0x10",
        "1_000",
        " 7 ",
        "7.",
        "07",
    ),
    *("1.5", "2000", "-2000", "2000.0000000000001", "٧", "½", "Infinity", "é", "12 monkeys"),
]


def _index(values: list[str]) -> AttributeIndex:
    passages = [Passage(f"p{at}", "", "", {"year": one, "é": "1"}) for at, one in enumerate(values)]
    return AttributeIndex(attributes.arrays(attributes.entries_of([*passages, Passage("last", "", "")])))


@pytest.mark.parametrize(
    ("low", "high"),
    list(product([None, -inf, -2000.0, 0.0, 7.0, nan, inf], [None, -inf, 0.0, 2000.0, nan, inf])),
)
def test_numbers_are_compared_as_a_condition_does(low: float | None, high: float | None) -> None:
    condition = Condition("year", NumberRange(low, high))
    values = VALUES * 2  # rows of one value
    wanted = [row for row, value in enumerate(values) if condition.met_by(value)]
    assert sorted(_index(values).rows_meeting(condition).tolist()) == wanted


def test_numbers_of_an_attribute_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(value: str) -> float:
        read.append(value)
        return number_of(value)

    monkeypatch.setattr(attributes, "number_of", reading)
    index = _index(VALUES)
    for low in range(3):
        assert len(index.rows_meeting(Condition("year", NumberRange(float(low), None)))) > 0
        assert len(index.rows_meeting(Condition("none", NumberRange(float(low), None)))) == 0
    assert sorted(read) == sorted(VALUES)


@pytest.mark.parametrize("read", [0, 10**6], ids=["halved", "read"])
def test_named_values_are_found_whichever_way_they_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr(attributes, "_READ", read)
    index = _index(VALUES * 2)
    asked = frozenset(["2000", "é", "", "nan", "NaN", "200", "none of them"])
    wanted = [row for row, value in enumerate(VALUES * 2) if value in asked]
    assert sorted(index.rows_meeting(Condition("year", AnyOf(asked))).tolist()) == wanted
    assert len(index.rows_meeting(Condition("none", AnyOf(asked)))) == 0


def test_a_thousand_values_are_not_looked_for_one_by_one_among_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    index = _index(VALUES)
    monkeypatch.setattr(AttributeIndex, "_place", None)
    asked = frozenset(map(str, range(1000, 3000)))
    assert index.rows_meeting(Condition("year", AnyOf(asked))).tolist() == [VALUES.index("2000")]
