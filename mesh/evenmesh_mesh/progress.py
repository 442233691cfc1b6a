"""Report the progress of a mesh that starts and runs."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """State of a service."""

    STARTING = "starting"
    SERVING = "serving"
    CRASHED = "crashed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Progress:
    """A service reached a phase.

    Attributes:
        service: name of the service.
        phase: the phase that it reached.
        detail: one more line; may be empty.
    """

    service: str
    phase: Phase
    detail: str = ""


Observe = Callable[[Progress], None]
"""Called with every step, on the event loop; it must not block."""


def unobserved(progress: Progress) -> None:
    """Ignore progress."""
    del progress
