"""What happens to a mesh, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SERVICES: Final = ("orchestrator", "retriever", "reranker", "generator", "evaluator")
DATABASE: Final = "postgres"

_KINDS: Final = ("kill", "stop", "delay", "throttle", "cut", "silence")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens, one after the other.

    Attributes:
        target: a service, or the database.
        kind: ``kill`` (SIGKILL, started again after ``lasts_s``), ``stop`` (SIGSTOP, SIGCONT), or of the
            network in front of it: ``delay``, ``throttle``, ``cut`` (reset, and refused for as long) and
            ``silence`` (connections that say nothing any more, and never will).
        lasts_s: how long. Seconds.
        amount: seconds of delay, or bytes a second.
        rest_s: peace after it. Seconds.
    """

    target: str
    kind: str
    lasts_s: float
    amount: float
    rest_s: float


def drawn(seed: int) -> Iterator[Fault]:
    """Faults without end; the same for a seed."""
    rng = random.Random(seed)
    while True:
        target = rng.choice((*SERVICES, DATABASE))
        # A forgotten connection to the database is its drivers' to find, and they look once a minute.
        kind = rng.choice(_KINDS if target != DATABASE else _KINDS[:-1])
        amount = {"delay": rng.uniform(0.02, 0.3), "throttle": 10 ** rng.uniform(4, 5.5)}.get(kind, 0.0)
        lasts = {"kill": (0.0, 0.5), "cut": (0.0, 1.0)}.get(kind, (0.3, 3.0))
        yield Fault(target, kind, rng.uniform(*lasts), amount, rng.uniform(0.2, 2.0))
