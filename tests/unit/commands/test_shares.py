"""Bounds on shares as options."""

from __future__ import annotations

import pytest

from evenmesh import GroupShare
from evenmesh.commands.failure import CommandError
from evenmesh.commands.shares import shares_of


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("provider<=0.4", GroupShare("provider", at_most=0.4)),
        ("group=female>=0.3", GroupShare("group", "female", at_least=0.3)),
        (" provider = Co-op & Sons <= .5 ", GroupShare("provider", "Co-op & Sons", at_most=0.5)),
    ],
)
def test_a_bound_is_read(text: str, share: GroupShare) -> None:
    assert shares_of([text]) == [share]


def test_without_bounds_there_are_none() -> None:
    assert shares_of(None) is None
    assert shares_of([]) is None


@pytest.mark.parametrize(
    "text", ["provider", "provider=0.4", "<=0.4", "provider<=", "provider<=much", "a<0.4"]
)
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        shares_of([text])
