"""Evaluate the steps of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from evenmesh_studies.load.analysis.knee import Knee, find_knee, slo_rate_of
from evenmesh_studies.load.analysis.prediction import Prediction, ServiceTimes, predictions
from evenmesh_studies.load.resource_monitor import Bottleneck, bottleneck
from evenmesh_studies.load.settings import CallSettings
from evenmesh_studies.load.step import Distribution, Slo, StepResult

SLOWER: Final = 4.0
"""Default SLO as a multiple of the idle mesh's median latency."""


@dataclass(frozen=True)
class LoadRun:
    """A run: its steps, and what follows from them.

    Attributes:
        way: ``load``, ``ramp`` or ``sweep``.
        settings: of the calls.
        steps: in the order they were measured.
        slo: definition of a good call; None if unknown.
        facts: machine, mesh and settings: names and values.
        local: whether the services ran on this machine.
        seed: of resamples.
        knee: of a ramp; None without open-loop steps and a single caller.
        slo_rate: rate up to which the SLO was met, and whether a larger one was tried.
        times: input of the queueing models; None without closed-loop steps.
        predicted: by the models.
        interrupted: whether it was stopped early, in a step or between two.
    """

    way: str
    settings: CallSettings
    steps: Sequence[StepResult]
    slo: Slo | None
    facts: Mapping[str, str]
    local: bool
    seed: int
    knee: Knee | None = None
    slo_rate: tuple[float, bool] | None = None
    times: ServiceTimes | None = None
    predicted: Sequence[Prediction] = field(default=())
    interrupted: bool = False

    @property
    def loads(self) -> list[StepResult]:
        """Open-loop and trace steps."""
        return [one for one in self.steps if one.step.kind != "closed"]


def evaluate_run(
    way: str,
    settings: CallSettings,
    steps: Sequence[StepResult],
    slo: Slo | None,
    facts: Mapping[str, str],
    *,
    local: bool,
    seed: int,
    interrupted: bool = False,
) -> LoadRun:
    """Evaluate the steps of a run.

    Args:
        way: ``load``, ``ramp`` or ``sweep``.
        settings: of the calls.
        steps: measured.
        slo: definition of a good call; None for four times the idle latency, if known.
        facts: names and values.
        local: whether the services ran on this machine.
        seed: of resamples.
        interrupted: whether it was stopped early.
    """
    alone = next((one for one in steps if one.step.kind == "closed" and one.step.callers == 1), None)
    if slo is None and alone is not None and len(alone.latencies_ms()) and way != "sweep":
        slo = Slo(SLOWER * Distribution.of(alone.latencies_ms()).p50)
    loads = [one for one in steps if one.step.kind != "closed"]
    knee = slo_rate = times = None
    predicted: Sequence[Prediction] = ()
    if way == "ramp":
        times = ServiceTimes.of([one for one in steps if one.step.kind == "closed"])
        predicted = predictions(times) if times is not None else ()
        if alone is not None and any(len(one.latencies_ms()) for one in loads):
            knee = find_knee(alone, loads, seed)
        if slo is not None and loads:
            slo_rate = slo_rate_of(loads, slo)
    return LoadRun(
        way, settings, steps, slo, facts, local, seed, knee, slo_rate, times, predicted, interrupted
    )


def bottleneck_of(run: LoadRun, measured: StepResult) -> tuple[Bottleneck, str]:
    """Return what delayed the calls of a step, and the evidence."""
    return bottleneck(
        measured.usage,
        client_cpu_s=measured.client_cpu_s,
        processes=measured.processes,
        elapsed_s=measured.elapsed_s,
        late_p99_ms=Distribution.of(measured.late_ms()).p99,
        latency_p50_ms=Distribution.of(measured.latencies_ms()).p50,
        kept_up=measured.kept_up,
        local=run.local,
    )


def load_name(measured: StepResult) -> str:
    """Return a short name of a step's load."""
    step = measured.step
    match step.kind:
        case "closed":
            return f"{step.callers} caller{'s' if step.callers > 1 else ''}"
        case "open":
            return f"{step.rate:.3g}/s"
        case "trace":
            return "trace"
