"""Bounds on the shares of groups, as options of commands."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from evenmesh.commands.failure import USAGE, CommandError

if TYPE_CHECKING:
    from evenmesh.types.policy import GroupShare

_BOUND: Final = re.compile(
    r"(?P<attribute>[^=<>]+?)(?:=(?P<value>.*?))?\s*(?P<sign><=|>=)\s*(?P<share>[^<>=]+)"
)


def shares_of(given: Sequence[str] | None) -> "list[GroupShare] | None":
    """Return the bounds of options such as ``provider<=0.4``; None without any.

    Raises:
        CommandError: one is not written so.
    """
    return [_share(one) for one in given] if given else None


def _share(text: str) -> "GroupShare":
    from evenmesh.types.policy import GroupShare

    found = _BOUND.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"--share is {text!r}; write 'provider<=0.4' or 'group=female>=0.3'", USAGE)
    try:
        share = float(found["share"])
    except ValueError:
        raise CommandError(f"--share {text!r}: {found['share']!r} is not a number", USAGE) from None
    name, value = found["attribute"].strip(), (found["value"] or "").strip()
    if found["sign"] == "<=":
        return GroupShare(name, value, at_most=share)
    return GroupShare(name, value, at_least=share)
