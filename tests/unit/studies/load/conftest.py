import math
from collections.abc import Callable, Sequence

import pytest

from evenmesh_studies.load.analysis.histograms import Histogram
from evenmesh_studies.load.calls.call import Call, Outcome
from evenmesh_studies.load.resource_monitor import ResourceUsage
from evenmesh_studies.load.settings import CallSettings
from evenmesh_studies.load.step import Distribution, Step, StepResult

Make = Callable[..., StepResult]


@pytest.fixture
def make() -> Make:
    """Makes what a step measured: calls due at regular times, with the latencies that are given."""

    def made(
        latencies_ms: Sequence[float],
        *,
        name: str = "step",
        rate: float = math.nan,
        callers: int = 0,
        seconds: float = 10.0,
        failed: Sequence[int] = (),
        code: str = "UNAVAILABLE",
        outcome: Outcome | None = None,
        usage: ResourceUsage | None = None,
        interrupted: bool = False,
    ) -> StepResult:
        # After the transient, so that all are counted.
        begin = 0.1 * seconds
        gap = 0.9 * seconds / max(len(latencies_ms), 1)
        calls = []
        for place, latency in enumerate(latencies_ms):
            due = begin + gap * place
            what = outcome or Outcome(first_s=due + latency / 2e3, stages={"generate": latency / 2})
            calls.append(Call(due, due, due + latency / 1e3, Outcome(code) if place in failed else what))
        kind = "closed" if callers else "open"
        step = Step(name, kind, seconds, CallSettings(), rate=rate, callers=callers)  # type: ignore[arg-type]
        return StepResult(
            step,
            calls,
            Histogram.of([1.0, 2.0]),
            Distribution.of([0.1]),
            seconds,
            0.1,
            1,
            usage or ResourceUsage(),
            interrupted,
        )

    return made
