"""Filters of the SDK and their wire form."""

from typing import Any

import pytest

from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.types.filters import Between, Filter, filter_message
from evenmesh.wire.errors import InvalidField


def _condition(allowed: Any) -> retriever_pb2.Condition:
    (condition,) = filter_message({"a": allowed}).conditions
    assert condition.attribute == "a"
    return condition


def test_values() -> None:
    assert list(_condition("x").any_of.values) == ["x"]
    assert list(_condition(["x", "y"]).any_of.values) == ["x", "y"]
    assert list(_condition(("x", "")).any_of.values) == ["x", ""]


def test_text_between() -> None:
    both = _condition(Between("2020-01-01", "2021")).text_range
    assert (getattr(both, "from"), both.to) == ("2020-01-01", "2021")
    open_end = _condition(Between("2020-01-01")).text_range
    assert open_end.HasField("from")
    assert not open_end.HasField("to")
    empty = _condition(Between(None, "")).text_range
    assert (empty.HasField("from"), empty.HasField("to")) == (False, True)


def test_numbers_between() -> None:
    both = _condition(Between(1990, 2000.5)).number_range
    assert (getattr(both, "from"), both.to) == (1990.0, 2000.5)
    zero = _condition(Between(None, 0)).number_range
    assert (zero.HasField("from"), zero.HasField("to")) == (False, True)


def test_between_nothing_is_having_the_attribute() -> None:
    condition = _condition(Between())
    assert condition.WhichOneof("allowed") == "text_range"
    assert not condition.text_range.HasField("from")
    assert not condition.text_range.HasField("to")


def test_conditions_stand_in_their_order() -> None:
    wanted: Filter = {"b": "x", "a": Between(1, 2)}
    assert [one.attribute for one in filter_message(wanted).conditions] == ["b", "a"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("provider=a", "must say what is allowed by attribute"),
        ({"a": []}, "at least one value"),
        ({"a": 5}, "must be text, several texts or evenmesh.Between, not int"),
        ({"a": [5]}, "must be text, not int"),
        ({"a": None}, "not NoneType"),
        ({"a": {"x"}}, "not set"),
        ({"a": Between("1990", 2000)}, "between two texts or two numbers, not '1990' and 2000"),
        ({"a": Between(True, 2)}, "between two texts or two numbers"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({5: "a"}, "must be text, not int"),
        ({str(i): "x" for i in range(17)}, "at most 16 attributes, has 17"),
    ],
)
def test_what_is_no_filter(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidField, match=words) as caught:
        filter_message(wanted)
    assert caught.value.field is not None
    assert caught.value.field.startswith("filter")
