"""The notation: what the paper writes, what is wrong and where, and that text and values say the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_orchestrator.expressions.notation import (
    MAX_KEPT,
    RESERVED,
    Expression,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)
from evenmesh_orchestrator.expressions.parser import (
    MAX_EXPRESSION_BYTES,
    MAX_NESTING,
    ExpressionError,
    parse,
    parse_selection,
)

WIKI, SE, HB = Source("Wiki"), Source("SE"), Source("HB")

PAPER: list[tuple[str, Expression]] = [
    ("Wiki@10", Expression((Selection(WIKI, keep=10),))),
    ("SE@1", Expression((Selection(SE, keep=1),))),
    ("SE@4", Expression((Selection(SE, keep=4),))),
    ("PK", Expression((Selection(ParametricKnowledge()),))),
    ("SE@RR@10", Expression((Selection(SE, True, 10),))),
    ("SE@2&Wiki@5", Expression((Selection(SE, keep=2), Selection(WIKI, keep=5)))),
    ("SE@RR@5&Wiki@5", Expression((Selection(SE, True, 5), Selection(WIKI, keep=5)))),
    ("HB@RR@10", Expression((Selection(HB, True, 10),))),
]
"""The eight retrievers of appendix C.1."""


@pytest.mark.parametrize(("text", "meant"), PAPER, ids=[text for text, _ in PAPER])
def test_the_papers_retrievers(text: str, meant: Expression) -> None:
    assert parse(text) == meant
    assert str(meant) == text
    if text != "PK":  # which the paper does not compress
        assert parse(f"{text}@CP") == Expression(meant.parts, compressed=True)


def test_retrieval_free() -> None:
    assert parse("ReFree") == Expression()
    assert parse("ReFree").is_retrieval_free
    assert str(Expression()) == "ReFree"


def test_parentheses_say_what_the_priorities_cannot() -> None:
    # @RR binds before @k, so that truncation before reranking needs them.
    assert parse("(Wiki@20)@RR@5") == Expression((Selection(Group((Selection(WIKI, keep=20),)), True, 5),))
    hybrid = Group((Selection(SE), Selection(WIKI, keep=20), Selection(ParametricKnowledge())))
    assert parse("(SE&Wiki@20&PK)@RR@10") == Expression((Selection(hybrid, True, 10),))


def test_blanks_mean_nothing() -> None:
    assert parse(" SE @RR @5 &\tWiki@5 @CP ") == parse("SE@RR@5&Wiki@5@CP")


def test_columns_of_sources() -> None:
    first, second = parse("SE@RR@5 & Wiki@5").parts
    assert isinstance(first.base, Source)
    assert isinstance(second.base, Source)
    assert (first.base.column, second.base.column) == (1, 11)


def test_a_part_alone() -> None:
    assert parse_selection("Wiki@20") == Selection(WIKI, keep=20)
    with pytest.raises(ExpressionError, match=r"^column 8: expected the end, got '@CP'$"):
        parse_selection("Wiki@20@CP")


WRONG = [
    ("", 1, "expected the name of a source or '(', got the end"),
    ("&Wiki", 1, "expected the name of a source or '(', got '&'"),
    ("Wiki&", 6, "expected the name of a source or '(', got the end"),
    ("Wiki@5@RR", 7, "expected &, @CP or the end, got '@RR'"),
    ("Wiki@5 SE", 8, "expected &, @CP or the end, got 'SE'"),
    ("Wiki@XX", 5, "expected @RR, @ and a number, &, @CP or the end, got '@XX'"),
    ("Wiki@", 5, "expected @RR, @ and a number, &, @CP or the end, got '@'"),
    ("Wiki@CP&SE", 8, "expected the end, got '&'"),
    ("(Wiki@5", 8, "expected & or ')', got the end"),
    ("(SE@5@CP)", 6, "expected & or ')', got '@CP'"),
    ("Wiki)", 5, "expected @RR, @ and a number, &, @CP or the end, got ')'"),
    ("W!ki", 2, "expected @RR, @ and a number, &, @CP or the end, got '!'"),
    ("Wiki\n@5", 5, "expected @RR, @ and a number, &, @CP or the end, got '\\n'"),
    ("Süd@3", 2, "expected @RR, @ and a number, &, @CP or the end, got 'üd'"),
    ("Wiki@0", 5, "@k keeps 1 to 1000 passages, got @0"),
    ("Wiki@1001", 5, "@k keeps 1 to 1000 passages, got @1001"),
    ("Wiki@" + "9" * 200, 5, "@k keeps 1 to 1000 passages"),
    ("Wiki@5&ReFree", 8, "ReFree has no passages and stands alone"),
    ("ReFree@CP", 1, "ReFree has no passages and stands alone"),
    ("ReFree@3", 1, "ReFree has no passages and stands alone"),
    ("(ReFree)", 2, "ReFree has no passages and stands alone"),
    ("PK@CP", 3, "PK alone cannot be compressed"),
    ("(" * 9 + "Wiki" + ")" * 9, MAX_NESTING + 1, "at most 8 parentheses may be open"),
    ("A" * (MAX_EXPRESSION_BYTES + 1), 1, "must be at most 256 bytes, has 257"),
]


@pytest.mark.parametrize(("text", "column", "words"), WRONG, ids=[repr(text[:20]) for text, _, _ in WRONG])
def test_what_is_wrong_and_where(text: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.column == column
    assert str(caught.value).startswith(f"column {column}: {words}")


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,6}", fullmatch=True).filter(lambda name: name not in RESERVED)
KEPT = st.none() | st.integers(1, MAX_KEPT)


def _selections(bases: st.SearchStrategy[object]) -> st.SearchStrategy[Selection]:
    return st.builds(Selection, bases, st.booleans(), KEPT)  # type: ignore[arg-type]


LEAVES = st.builds(Source, NAMES) | st.just(ParametricKnowledge())
BASES = st.recursive(
    LEAVES,
    lambda inner: st.builds(Group, st.lists(_selections(inner), min_size=1, max_size=3).map(tuple)),
    max_leaves=4,
)
PARTS = st.lists(_selections(BASES), min_size=1, max_size=3).map(tuple)
EXPRESSIONS = st.builds(Expression, PARTS, st.booleans()).filter(
    lambda one: not (one.compressed and Expression(one.parts).is_parametric)
)


@given(EXPRESSIONS | st.just(Expression()))
def test_what_is_written_reads_back(expression: Expression) -> None:
    text = str(expression)
    if len(text) > MAX_EXPRESSION_BYTES:
        with pytest.raises(ExpressionError):
            parse(text)
        return
    assert parse(text) == expression
    assert str(parse(text)) == text


@given(st.text(max_size=30) | st.text("WikSE@RCP&()0123 ", max_size=30))
def test_any_text_is_parsed_or_its_error_has_a_position(text: str) -> None:
    try:
        expression = parse(text)
    except ExpressionError as error:
        column = error.column
    else:
        assert parse(str(expression)) == expression
        return
    assert 1 <= column <= len(text) + 1
