"""A clock that tests move."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds that pass when a test adds to them."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
