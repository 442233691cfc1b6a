"""A run as a whole: its steps, and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ragmesh.bench.knee import Knee, find_knee, within_slo
from ragmesh.bench.prediction import Prediction, ServiceTimes, predictions
from ragmesh.bench.settings import Settings
from ragmesh.bench.step import Measured, Slo, Spread
from ragmesh.bench.witness import Bottleneck, bottleneck

SLOWER: Final = 4.0
"""Without an SLO a call is good within so many times the median latency of the idle mesh."""


@dataclass(frozen=True)
class Run:
    """What a run measured, and what it says.

    Attributes:
        way: ``load``, ``ramp`` or ``sweep``.
        settings: what was asked for.
        steps: in the order they were measured.
        slo: what a good call is; None where nothing says what is slow.
        facts: the machine, the mesh, what was asked; names and values.
        local: whether the services ran on this machine.
        seed: of resamples.
        knee: of a ramp; None without loads at rates and a caller alone.
        slo_rate: the rate up to which the SLO held, and whether a larger one was tried.
        times: what queueing models know; None without callers who wait.
        predicted: what they say.
    """

    way: str
    settings: Settings
    steps: Sequence[Measured]
    slo: Slo | None
    facts: Mapping[str, str]
    local: bool
    seed: int
    knee: Knee | None = None
    slo_rate: tuple[float, bool] | None = None
    times: ServiceTimes | None = None
    predicted: Sequence[Prediction] = field(default=())

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its end."""
        return any(one.interrupted for one in self.steps)

    @property
    def closed(self) -> list[Measured]:
        """Steps of callers who wait."""
        return [one for one in self.steps if one.step.kind == "closed"]

    @property
    def loads(self) -> list[Measured]:
        """Steps whose calls came when they were due."""
        return [one for one in self.steps if one.step.kind != "closed"]


def concluded(
    way: str,
    settings: Settings,
    steps: Sequence[Measured],
    slo: Slo | None,
    facts: Mapping[str, str],
    *,
    local: bool,
    seed: int,
) -> Run:
    """What follows from the steps of a run.

    Args:
        way: ``load``, ``ramp`` or ``sweep``.
        settings: what was asked for.
        steps: what was measured.
        slo: what a good call is; None for four times the latency of the idle mesh, where that is known.
        facts: names and values.
        local: whether the services ran on this machine.
        seed: of resamples.
    """
    alone = next((one for one in steps if one.step.kind == "closed" and one.step.callers == 1), None)
    if slo is None and alone is not None and len(alone.latencies_ms()) and way != "sweep":
        slo = Slo(SLOWER * Spread.of(alone.latencies_ms()).p50)
    loads = [one for one in steps if one.step.kind != "closed"]
    knee = slo_rate = times = None
    predicted: Sequence[Prediction] = ()
    if way == "ramp":
        times = ServiceTimes.of([one for one in steps if one.step.kind == "closed"])
        predicted = predictions(times) if times is not None else ()
        if alone is not None and any(len(one.latencies_ms()) for one in loads):
            knee = find_knee(alone, loads, seed)
        if slo is not None and loads:
            slo_rate = within_slo(loads, slo)
    return Run(way, settings, steps, slo, facts, local, seed, knee, slo_rate, times, predicted)


def blamed(run: Run, measured: Measured) -> tuple[Bottleneck, str]:
    """What held up the calls of a step, and why that is said."""
    return bottleneck(
        measured.witnessed,
        client_cpu_s=measured.client_cpu_s,
        processes=measured.processes,
        elapsed_s=measured.elapsed_s,
        late_p99_ms=Spread.of(measured.late_ms()).p99,
        latency_p50_ms=Spread.of(measured.latencies_ms()).p50,
        kept_up=measured.kept_up,
        local=run.local,
    )


def load_name(measured: Measured) -> str:
    """A load in a few words."""
    step = measured.step
    match step.kind:
        case "closed":
            return f"{step.callers} caller{'s' if step.callers > 1 else ''}"
        case "open":
            return f"{step.rate:.3g}/s"
        case "trace":
            return "trace"
