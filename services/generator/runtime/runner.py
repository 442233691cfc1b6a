"""What computes the requests of an engine."""

from __future__ import annotations

from typing import Protocol

from services.generator.runtime.outcomes import Outcome
from services.generator.runtime.statistics import EngineStatistics
from services.generator.runtime.tasks import Judgement, Task


class Runner(Protocol):
    """Computes requests in a thread of its own. Every method may be called from any thread."""

    def put(self, item: Task | Judgement) -> None:
        """Takes a request that has a prompt, or passages to judge."""
        ...

    def end(self, task: Task, outcome: Outcome) -> None:
        """Ends a request that never came so far."""
        ...

    def statistics(self, preparing: int) -> EngineStatistics:
        """What was done so far; ``preparing``: requests that have no prompt yet."""
        ...

    def close(self) -> None:
        """Stops; what is not done ends with UNAVAILABLE."""
        ...
