"""Deadlines and budgets."""

from __future__ import annotations

import math

import pytest

from evenmesh.wire.deadline import LONGEST_BUDGET_S, NEVER, Deadline, current
from evenmesh.wire.errors import DeadlineExceeded


def test_outside_a_call_there_is_no_deadline() -> None:
    assert current() is NEVER
    assert current().remaining() == math.inf
    assert not current().expired


def test_remaining_shrinks_to_zero_and_no_further() -> None:
    deadline = Deadline.after(100)
    first = deadline.remaining()
    assert first <= 100
    assert deadline.remaining() <= first
    past = Deadline.after(-5)
    assert past.remaining() == 0
    assert past.expired


def test_a_budget_keeps_the_margin() -> None:
    assert 0 < Deadline.after(10).budget(margin_s=4) <= 6


def test_a_budget_is_capped() -> None:
    assert Deadline.after(10).budget(cap_s=2) == 2
    assert Deadline.after(1).budget(cap_s=2) < 1


def test_a_budget_is_finite_even_without_a_deadline() -> None:
    assert NEVER.budget() == LONGEST_BUDGET_S
    assert NEVER.budget(cap_s=3) == 3


@pytest.mark.parametrize("seconds", [-1, 0, 0.01, 0.02])
def test_without_more_than_the_margin_there_is_no_budget(seconds: float) -> None:
    with pytest.raises(DeadlineExceeded):
        Deadline.after(seconds).budget(margin_s=0.02)
