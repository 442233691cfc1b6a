"""Read filters from the command line: ``provider=a,b``, ``date=2020-01-01..``, ``year:=1990..2000``."""

import csv
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from evenmesh.commands.failure import USAGE, CommandError

if TYPE_CHECKING:
    from evenmesh.types.filters import Allowed, Filter

FILTER_HELP: Final = (
    "Condition on an attribute of passages: one of the values in provider=a,b (with a comma or .. in them: "
    "'provider=\"C, Inc.\",b'); text between "
    "date=2020-01-01..2021 (either end may be left out); numbers between year:=1990..2000. May be repeated."
)

_CONDITION: Final = re.compile(r"(?P<attribute>[^=]+?)(?P<numbers>:)?=(?P<allowed>.+)", re.DOTALL)


def filter_of(conditions: Sequence[str]) -> "Filter | None":
    """Return the filter that the conditions of a command line make; None without conditions.

    Raises:
        CommandError: one cannot be read, or two are about one attribute.
    """
    wanted: dict[str, Allowed] = {}
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise CommandError(f"--filter {condition}: must be like provider=a,b or date=2020-01-01..", USAGE)
        attribute = match["attribute"]
        if attribute in wanted:
            raise CommandError(
                f"--filter {condition}: {attribute} has a condition already; give all its values in one",
                USAGE,
            )
        wanted[attribute] = _allowed(condition, match["allowed"], numbers=match["numbers"] is not None)
    return wanted or None


def _allowed(condition: str, text: str, *, numbers: bool) -> "Allowed":
    from evenmesh.types.filters import Between

    low, dots, high = text.partition("..")
    if numbers:
        try:
            ends = [float(end) if end else None for end in (low, high if dots else low)]
        except ValueError:
            raise CommandError(
                f"--filter {condition}: after := stand numbers, as 1990..2000", USAGE
            ) from None
        return Between(*ends)
    quoted = text.startswith('"')
    if dots and not quoted:
        return Between(low or None, high or None)
    try:
        parts = next(csv.reader([text], strict=True)) if quoted else text.split(",")
    except csv.Error:
        raise CommandError(f"--filter {condition}: a quotation mark is missing", USAGE) from None
    values = [value for value in parts if value]
    if not values:
        raise CommandError(f"--filter {condition}: no value is left", USAGE)
    return values
