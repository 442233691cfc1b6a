"""Parse expressions, and point at their errors."""

from __future__ import annotations

import re
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from evenmesh_orchestrator.expressions.notation import (
    MAX_KEPT,
    PARAMETRIC_KNOWLEDGE,
    RETRIEVAL_FREE,
    Expression,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)

MAX_EXPRESSION_BYTES: Final = 256
"""Longest expression. Bytes."""
MAX_NESTING: Final = 8
"""Most nested parentheses."""

_GRAMMAR: Final = r"""
expression: concatenation COMPRESS?
concatenation: selection ("&" selection)*
selection: (NAME | group) RERANK? KEEP?
group: "(" concatenation ")"

COMPRESS: "@CP"
RERANK: "@RR"
KEEP: /@[0-9]+/
NAME: /[A-Za-z][A-Za-z0-9_-]*/
%ignore /[ \t]+/
"""

_FOUND: Final = re.compile(r"@?\w+|.", re.DOTALL)

# Names of the terminals, in the order in which messages list them.
_WORDS: Final = {
    "NAME": "the name of a source",
    "LPAR": "'('",
    "RERANK": "@RR",
    "KEEP": "@ and a number",
    "AMPERSAND": "&",
    "RPAR": "')'",
    "COMPRESS": "@CP",
    "$END": "the end",
}


class ExpressionError(ValueError):
    """Raised for an expression that cannot be parsed or run.

    Args:
        column: position of the error, in characters from 1.
        message: what was found there and what was expected.
    """

    def __init__(self, column: int, message: str) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column


def parse(text: str) -> Expression:
    """Parse an expression such as ``SE@RR@5&Wiki@5@CP``; blanks between its parts are ignored.

    Raises:
        ExpressionError: it is too long, is not in the notation, keeps no passage or more than 1,000, or
            uses ``PK`` or ``ReFree`` where they are not allowed.
    """
    expression: Expression = _read(_EXPRESSION, text)
    return expression


def parse_selection(text: str) -> Selection:
    """Parse one part of a concatenation, such as ``Wiki@20``; errors as :func:`parse`."""
    selection: Selection = _read(_SELECTION, text)
    _check_has_passages(selection)
    return selection


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Turns matched rules into values."""

    def expression(self, parts: tuple[Selection, ...], compress: Token | None = None) -> Expression:
        for part in parts:
            if part.base != Source(RETRIEVAL_FREE):
                continue
            if compress is not None or len(parts) > 1 or part != Selection(part.base):
                _check_has_passages(part)
            return Expression()
        expression = Expression(parts, compress is not None)
        if compress is not None and Expression(parts).is_parametric:
            raise ExpressionError(
                _place(compress),
                f"{PARAMETRIC_KNOWLEDGE} alone cannot be compressed; expected {_WORDS['$END']}",
            )
        return expression

    def concatenation(self, *parts: Selection) -> tuple[Selection, ...]:
        return parts

    def selection(self, base: Token | Group, *operations: Token) -> Selection:
        reranked, keep = False, None
        for operation in operations:
            if operation.type == "RERANK":
                reranked = True
            else:
                keep = _kept(operation)
        if isinstance(base, Group):
            return Selection(base, reranked, keep)
        if base == PARAMETRIC_KNOWLEDGE:
            return Selection(ParametricKnowledge(), reranked, keep)
        return Selection(Source(str(base), _place(base)), reranked, keep)

    def group(self, parts: tuple[Selection, ...]) -> Group:
        for part in parts:
            _check_has_passages(part)
        return Group(parts)


def _parser(start: str) -> Lark:
    return Lark(_GRAMMAR, parser="lalr", start=start, maybe_placeholders=False)


_EXPRESSION: Final = _parser("expression")
_SELECTION: Final = _parser("selection")


def _read(parser: Lark, text: str) -> Any:
    size = len(text.encode())
    if size > MAX_EXPRESSION_BYTES:
        raise ExpressionError(1, f"must be at most {MAX_EXPRESSION_BYTES} bytes, has {size}")
    _check_nesting(text)
    try:
        return _Builder().transform(parser.parse(text))
    except UnexpectedInput as error:
        at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        place = len(text) if at_end or error.pos_in_stream is None else error.pos_in_stream
        found = "the end" if place == len(text) else repr(_FOUND.findall(text, place)[0])
        raise ExpressionError(place + 1, f"expected {_expected(parser, text[:place])}, got {found}") from None
    except VisitError as error:
        if isinstance(error.orig_exc, ExpressionError):
            raise error.orig_exc from None
        raise


def _check_nesting(text: str) -> None:
    depth = 0
    for place, character in enumerate(text, start=1):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth > MAX_NESTING:
            raise ExpressionError(place, f"at most {MAX_NESTING} parentheses may be open")


def _expected(parser: Lark, before: str) -> str:
    """Return what can follow a text that is correct so far, as words for a person."""
    state: Any = parser.parse_interactive(before)
    for _ in state.iter_parse():
        pass
    # The parser's own list is too long: a merged state expects what only one of its parts accepts.
    accepted = state.accepts()
    words = [word for terminal, word in _WORDS.items() if terminal in accepted]
    return " or ".join((", ".join(words[:-1]), words[-1]) if len(words) > 1 else words)


def _kept(token: Token) -> int:
    digits = token[1:]
    number = int(digits) if len(digits) <= len(str(MAX_KEPT)) else MAX_KEPT + 1
    if not 1 <= number <= MAX_KEPT:
        raise ExpressionError(_place(token), f"@k keeps 1 to {MAX_KEPT} passages, got {token}")
    return number


def _place(token: Token) -> int:
    return (token.start_pos or 0) + 1


def _check_has_passages(part: Selection) -> None:
    if isinstance(part.base, Source) and part.base.name == RETRIEVAL_FREE:
        raise ExpressionError(part.base.column, f"{RETRIEVAL_FREE} has no passages and stands alone")
