"""Write Milvus filter expressions whose values cannot end their literal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evenmesh_retriever.domain import AnyOf, Condition, Filter, NumberRange, TextRange

ATTRIBUTES: Final = "attributes"
"""Field of a passage's attributes, all of them text."""
NUMBERS: Final = "numbers"
"""Field of those attributes that are numbers, as numbers."""
LARGEST: Final = 1.7976931348623157e308
"""Stands for infinity, which JSON does not have."""

# What would end a literal, or is not allowed in one. Everything else stands for itself.
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def literal(text: str) -> str:
    """Return a text as a literal."""
    return f'"{text.translate(_ESCAPES)}"'


def one_of(field: str, values: Iterable[str]) -> str:
    """Return whether a field is one of some texts."""
    return f"{field} in [{', '.join(map(literal, values))}]"


def after(field: str, value: str) -> str:
    """Return whether a field comes after a text, in the order of code points."""
    return f"{field} > {literal(value)}"


def at_least(field: str, value: str) -> str:
    """Return whether a field is a text or comes after it, in the order of code points."""
    return f"{field} >= {literal(value)}"


def has(attribute: str) -> str:
    """Return whether a passage has an attribute."""
    return f"exists {ATTRIBUTES}[{literal(attribute)}]"


def allowing(where: Filter | None) -> str:
    """Return whether a passage may be found; empty if all may."""
    return " and ".join(_condition(one) for one in where.conditions) if where is not None else ""


def _condition(condition: Condition) -> str:
    text = f"{ATTRIBUTES}[{literal(condition.attribute)}]"
    match condition.allowed:
        case AnyOf(values):
            parts = [f"{text} == {literal(value)}" for value in sorted(values)]
            return f"({' or '.join(parts)})"
        case TextRange(low, high):
            return _range(
                text,
                None if low is None else literal(low),
                None if high is None else literal(high),
                condition,
            )
        case NumberRange(low, high):
            number = f"{NUMBERS}[{literal(condition.attribute)}]"
            least, most = (
                max(-LARGEST, min(LARGEST, one)) if one is not None else None for one in (low, high)
            )
            return _range(
                number,
                repr(-LARGEST if least is None else least),
                repr(LARGEST if most is None else most),
                condition,
            )


def _range(value: str, low: str | None, high: str | None, condition: Condition) -> str:
    bounds = [f"{value} >= {low}"] if low is not None else []
    bounds += [f"{value} <= {high}"] if high is not None else []
    return f"({' and '.join(bounds or [has(condition.attribute)])})"
