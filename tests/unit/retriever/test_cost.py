"""What a query of a collection counts before any of it is done."""

from __future__ import annotations

import pytest

from evenmesh_retriever import cost
from evenmesh_retriever.analyzer import ANALYZERS
from evenmesh_retriever.domain import AnyOf, Condition, Filter, NumberRange, TextRange

MARK, PRAYER = "\u0301", "\ufdfa"
"""A combining mark, and one letter that stands for four words."""


@pytest.mark.parametrize("name", ANALYZERS)
@pytest.mark.parametrize(
    "text",
    ["fox " * 50, "fox_" * 50, "! " * 50, PRAYER * 50, f"{MARK}." * 50, f"_{MARK}" * 50, "don't " * 50, "狐"],
)
def test_every_token_that_an_analyzer_makes_of_a_query_counts(name: str, text: str) -> None:
    tokens = len(ANALYZERS[name]().tokens(text))
    assert cost.query(text, 2**16, 0) >= tokens
    assert cost.query(text, 0, 64) >= tokens, "each is looked up in each segment"


def test_values_that_a_filter_names_count_in_each_segment() -> None:
    values = frozenset(map(str, range(1000)))
    conditions = [
        Condition("year", AnyOf(values)),
        Condition("year", TextRange("1", None)),
        Condition("year", NumberRange(1.0, None)),
    ]
    # 1000 values in 4 segments of 2^20 passages together: 21 halvings of 2^20 + 1 places.
    assert cost.filtering(Filter((conditions[0],)), 2**20, 4) == 2**20 // 2**15 + 1000 * 4 * 21 // 256
    # Fewer passages than that are read one by one at most.
    assert cost.filtering(Filter((conditions[0],) * 16), 2**14, 12) == 8 + 16 * 2**14 // 256
    assert cost.filtering(Filter(tuple(conditions[1:])), 2**20, 4) == 2 * 2**20 // 2**15
