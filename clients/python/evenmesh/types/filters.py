"""Filters: conditions on the attributes of passages that may be found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from evenmesh.codec.values import text
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.wire.errors import InvalidField

MAX_CONDITIONS: Final = 16
"""Most conditions of a filter."""


@dataclass(frozen=True, slots=True)
class Between:
    """Values from ``low`` to ``high``, both included; None means no bound.

    Of text, values are compared as text: dates of ISO 8601 in one form and zone by time, where an end that is
    a day comes before every time of that day. Of numbers, a value that
    is no number is outside. Without any bound a passage need only have the attribute.
    """

    low: str | float | None = None
    high: str | float | None = None


Allowed: TypeAlias = str | Sequence[str] | Between
"""What an attribute may be: one value, one of several, or one between two."""

Filter: TypeAlias = Mapping[str, Allowed]
"""What is allowed of each attribute; all of it holds for a passage that may be found, such as
``{"provider": ["a.org", "b.org"], "date": Between("2020-01-01"), "year": Between(1990, 2000)}``."""


def filter_message(wanted: Filter) -> retriever_pb2.Filter:
    """Return the message of a filter.

    Raises:
        InvalidField: a condition is not one of :data:`Allowed`; its field names the attribute.
    """
    if not isinstance(wanted, Mapping):
        raise InvalidField("filter", f"must say what is allowed by attribute, not be {type(wanted).__name__}")
    if len(wanted) > MAX_CONDITIONS:
        raise InvalidField("filter", f"must be at most {MAX_CONDITIONS} attributes, has {len(wanted)}")
    return retriever_pb2.Filter(
        conditions=[_condition(attribute, allowed) for attribute, allowed in wanted.items()]
    )


def _condition(attribute: str, allowed: Allowed) -> retriever_pb2.Condition:
    field = f"filter[{attribute!r}]"
    condition = retriever_pb2.Condition(attribute=text("filter", attribute))
    match allowed:
        case str():
            condition.any_of.values.append(text(field, allowed))
        case Between(low, high):
            _set_range(condition, field, low, high)
        case Sequence():
            condition.any_of.values.extend(text(field, value) for value in allowed)
            if not allowed:
                raise InvalidField(field, "must allow at least one value")
        case _:
            raise InvalidField(
                field, f"must be text, several texts or evenmesh.Between, not {type(allowed).__name__}"
            )
    return condition


def _set_range(
    condition: retriever_pb2.Condition, field: str, low: str | float | None, high: str | float | None
) -> None:
    ends = {"from": low, "to": high}
    given = {name: end for name, end in ends.items() if end is not None}
    if all(isinstance(end, str) for end in given.values()):
        texts = {name: text(field, end) for name, end in given.items() if isinstance(end, str)}
        condition.text_range.CopyFrom(retriever_pb2.TextRange(**texts))
    elif all(isinstance(end, int | float) and not isinstance(end, bool) for end in given.values()):
        numbers = {name: float(end) for name, end in given.items()}
        condition.number_range.CopyFrom(retriever_pb2.NumberRange(**numbers))
    else:
        raise InvalidField(field, f"must be between two texts or two numbers, not {low!r} and {high!r}")
