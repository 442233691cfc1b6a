"""Filters as the command line writes them."""

import pytest

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.filters import filter_of
from evenmesh.types.filters import Between


@pytest.mark.parametrize(
    ("text", "attribute", "allowed"),
    [
        ("provider=a", "provider", ["a"]),
        ("provider=a.org,b.org", "provider", ["a.org", "b.org"]),
        ("provider=x=y", "provider", ["x=y"]),
        ("date=2020-01-01..", "date", Between("2020-01-01")),
        ("date=..2021", "date", Between(None, "2021")),
        ("date=2020..2021", "date", Between("2020", "2021")),
        ("date=..", "date", Between()),
        ("year:=1990..2000", "year", Between(1990.0, 2000.0)),
        ("year:=-5..", "year", Between(-5.0)),
        ("year:=1990", "year", Between(1990.0, 1990.0)),
        ("dc:date=2020", "dc:date", ["2020"]),
        ('provider="C, Inc."', "provider", ["C, Inc."]),
        ('provider="C, Inc.",b', "provider", ["C, Inc.", "b"]),
        ('name="a..b"', "name", ["a..b"]),
    ],
)
def test_conditions(text: str, attribute: str, allowed: object) -> None:
    assert filter_of([text]) == {attribute: allowed}


def test_several_and_none() -> None:
    assert filter_of(["a=x", "b=y"]) == {"a": ["x"], "b": ["y"]}
    assert filter_of([]) is None


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["provider"], "must be like"),
        (["=a"], "must be like"),
        (["provider="], "must be like"),
        (["provider=,"], "no value is left"),
        (['provider=""'], "no value is left"),
        (['provider="a'], "a quotation mark is missing"),
        (["year:=x"], "numbers"),
        (["year:=1..y"], "numbers"),
        (["a=x", "a=y"], "a has a condition already"),
    ],
)
def test_what_cannot_be_read(texts: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        filter_of(texts)
    assert caught.value.status == USAGE
