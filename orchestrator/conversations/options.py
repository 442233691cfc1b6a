"""What a conversation is told beside how its turns are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Final

DEFAULT_HISTORY_TURNS: Final = 10
"""Earlier turns that passages are looked for with, unless told otherwise."""

_SEVERAL: Final = ";"


class History(Enum):
    """What passages are looked for with, in a turn that has turns before it."""

    NONE = "none"
    WORDS = "words"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True)
class Target:
    """What is fair for one attribute: C ≥ 2 groups, with shares from 0 that sum to 1.

    ``divergence`` is the contract's number of how distributions are compared, carried and never read.
    """

    attribute: str
    groups: tuple[str, ...]
    shares: tuple[float, ...]
    divergence: int

    def membership(self, value: str) -> tuple[Fraction, ...] | None:
        """To what degree something of this value belongs to each group; None where it has none of them.

        A value that is no group itself, but several with ``;`` between, belongs to those of them that are
        groups in equal parts.
        """
        named = [value] if value in self.groups else [part.strip() for part in value.split(_SEVERAL)]
        known = [name for name in dict.fromkeys(named) if name in self.groups]
        if not known:
            return None
        return tuple(Fraction(name in known, len(known)) for name in self.groups)

    @property
    def everywhere(self) -> tuple[Fraction, ...]:
        """Membership in all groups alike: of what tells of none."""
        return (Fraction(1, len(self.groups)),) * len(self.groups)


@dataclass(frozen=True, slots=True)
class Options:
    """How a conversation goes.

    ``measure`` is the contract's message of how conversations are measured, without turns and targets;
    carried and never read.
    """

    history: History = History.WORDS
    history_turns: int = DEFAULT_HISTORY_TURNS
    template: str = ""
    targets: tuple[Target, ...] = ()
    entity_attribute: str = ""
    measure: object | None = field(default=None)
