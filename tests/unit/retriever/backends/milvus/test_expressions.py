"""Filters as Milvus's expressions: their meaning is that of the domain's, and no value gets out of its literal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from milvus_lite.search.filter import parse_expr
from milvus_lite.search.filter.ast import CmpOp, PathAccess, StringLit

from evenmesh_retriever.backends.milvus.expressions import LARGEST, allowing, has, literal, one_of
from evenmesh_retriever.domain import AnyOf, Condition, Filter, NumberRange, TextRange


@given(st.text(), st.text())
def test_any_text_is_one_literal(attribute: str, value: str) -> None:
    parsed = parse_expr(f"attributes[{literal(attribute)}] == {literal(value)}")
    assert isinstance(parsed, CmpOp)
    assert isinstance(parsed.left, PathAccess)
    assert isinstance(parsed.right, StringLit)
    assert (parsed.left.path, parsed.right.value) == ((attribute,), value)


def test_conditions_are_joined() -> None:
    where = Filter(
        (
            Condition("group", AnyOf(frozenset({"b", "a"}))),
            Condition("date", TextRange("2020", None)),
            Condition("size", NumberRange(None, 3.5)),
            Condition("any", TextRange(None, None)),
        )
    )
    assert allowing(where) == (
        '(attributes["group"] == "a" or attributes["group"] == "b") and (attributes["date"] >= "2020") '
        f'and (numbers["size"] >= {-LARGEST!r} and numbers["size"] <= 3.5) and (exists attributes["any"])'
    )
    assert allowing(None) == ""
    assert one_of("id", ['a"', "b"]) == 'id in ["a\\"", "b"]'
    assert has('a"]') == 'exists attributes["a\\"]"]'
