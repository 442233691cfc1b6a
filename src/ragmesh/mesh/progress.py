"""What a mesh that starts and runs tells whoever watches it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a service has come to."""

    STARTING = "starting"
    SERVING = "serving"
    CRASHED = "crashed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Progress:
    """One service has come to a phase.

    Attributes:
        service: which.
        phase: what it has come to.
        detail: one line more; empty if there is nothing to say.
    """

    service: str
    phase: Phase
    detail: str = ""


Observe = Callable[[Progress], None]
"""Is told of every step, on the event loop; must not block."""


def unobserved(progress: Progress) -> None:
    """Watches nothing."""
    del progress
