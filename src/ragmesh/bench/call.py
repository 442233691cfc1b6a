"""One call, as whoever made it saw it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

OK: Final = "OK"
"""The code of a call that brought what was asked for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call brought.

    Attributes:
        code: ``OK``, or the gRPC code by name, followed by the mesh's reason where that says more.
        first_s: when the first text came, in seconds of the monotonic clock; ``nan`` without any.
        gaps_ms: milliseconds between pieces of text.
        stages: milliseconds by stage, in the order they ran.
        quantities: what else was measured, by name: tokens, exposure, utility.
        degraded: stages that degraded.
    """

    code: str = OK
    first_s: float = math.nan
    gaps_ms: tuple[float, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    quantities: Mapping[str, float] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call; times are seconds from the beginning of its step.

    Attributes:
        intended_s: when it was due. Latency counts from here: a client, or a mesh, that falls behind makes
            it longer and cannot hide it.
        sent_s: when it was sent.
        ended_s: when it ended.
        outcome: what it brought.
    """

    intended_s: float
    sent_s: float
    ended_s: float
    outcome: Outcome

    @property
    def ok(self) -> bool:
        """Whether it brought what was asked for."""
        return self.outcome.code == OK

    @property
    def latency_ms(self) -> float:
        """From when it was due to its end. Milliseconds."""
        return 1e3 * (self.ended_s - self.intended_s)

    @property
    def late_ms(self) -> float:
        """How much later than it was due it was sent. Milliseconds."""
        return 1e3 * (self.sent_s - self.intended_s)
