import math
from collections.abc import Callable, Sequence

import pytest

from ragmesh.bench.call import Call, Outcome
from ragmesh.bench.histograms import Histogram
from ragmesh.bench.settings import Settings
from ragmesh.bench.step import Measured, Spread, Step
from ragmesh.bench.witness import Witnessed

Make = Callable[..., Measured]


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
        witnessed: Witnessed | None = None,
        interrupted: bool = False,
    ) -> Measured:
        # After the transient, so that all are counted.
        begin = 0.1 * seconds
        gap = 0.9 * seconds / max(len(latencies_ms), 1)
        calls = []
        for place, latency in enumerate(latencies_ms):
            due = begin + gap * place
            what = outcome or Outcome(first_s=due + latency / 2e3, stages={"generate": latency / 2})
            calls.append(Call(due, due, due + latency / 1e3, Outcome(code) if place in failed else what))
        kind = "closed" if callers else "open"
        step = Step(name, kind, seconds, Settings(), rate=rate, callers=callers)  # type: ignore[arg-type]
        return Measured(
            step,
            calls,
            Histogram.of([1.0, 2.0]),
            Spread.of([0.1]),
            seconds,
            0.1,
            1,
            witnessed or Witnessed(),
            interrupted,
        )

    return made
