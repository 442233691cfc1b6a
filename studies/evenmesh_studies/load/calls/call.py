"""One call as its client saw it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

OK: Final = "OK"
"""The code of a call that succeeded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        code: ``OK``, or the gRPC code, followed by the mesh's reason where it differs.
        first_s: time of the first text, in seconds of the monotonic clock; ``nan`` without any.
        gaps_ms: milliseconds between pieces of text.
        stages: milliseconds by stage, in the order they ran.
        quantities: other measurements by name: tokens, exposure, utility.
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
        intended_s: when it was due. Latency counts from here, so a client or a mesh that falls behind cannot
            hide it.
        sent_s: when it was sent.
        ended_s: when it ended.
        outcome: of the call.
    """

    intended_s: float
    sent_s: float
    ended_s: float
    outcome: Outcome

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.outcome.code == OK

    @property
    def latency_ms(self) -> float:
        """Milliseconds from the time it was due to its end."""
        return 1e3 * (self.ended_s - self.intended_s)

    @property
    def late_ms(self) -> float:
        """Milliseconds from the time it was due to sending it."""
        return 1e3 * (self.sent_s - self.intended_s)
