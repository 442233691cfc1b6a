"""Plan the loads of a run and their durations, and check the plan."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from evenmesh_studies.load.settings import CallSettings, out_of_range
from evenmesh_studies.load.step import Slo, Step

Way = Literal["load", "ramp", "sweep"]

SHARES: Final = (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Rates of a ramp as shares of the saturation."""
VARIED: Final = ("N", "k", "alpha", "concurrency")
"""Names a sweep may vary."""
_LEAST_RATE: Final = 0.001
_MOST_RATE: Final = 100_000.0
_MOST_CALLERS: Final = 10_000
_MOST_STEPS: Final = 1_000


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The plan of a run.

    Attributes:
        way: given loads, a ramp to the knee, or one load under several settings.
        settings: of the calls.
        rates: of open loops, in calls per second; empty in a ramp for shares of the saturation.
        callers: of closed loops.
        arrivals: of a trace, in seconds.
        varied: names and values of a sweep; an alpha of None is the deterministic ranking.
        seconds: shortest step.
        least_calls: calls a step is made long enough for.
        longest_s: longest step, whatever ``least_calls`` is.
        warm_up: calls before the first step, not counted.
        seed: of arrivals and of resamples.
        slo: definition of a good call; None for four times the idle latency.
    """

    way: Way
    settings: CallSettings
    rates: tuple[float, ...] = ()
    callers: tuple[int, ...] = ()
    arrivals: tuple[float, ...] = ()
    varied: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    seconds: float = 30.0
    least_calls: int = 100
    longest_s: float = 300.0
    warm_up: int = 8
    seed: int = 0
    slo: Slo | None = None
    processes: int = 1

    def problems(self) -> Iterator[str]:
        """Yield the problems of the plan, a line each."""
        yield from self.settings.problems()
        for name, values, least, most in (
            ("rate", self.rates, _LEAST_RATE, _MOST_RATE),
            ("concurrency", self.callers, 1, _MOST_CALLERS),
        ):
            for value in values:
                if not least <= value <= most:
                    yield f"{name} is {value:g}; allowed: {least:g} to {most:,.0f}"
            if len(set(values)) < len(values):
                yield f"{name} has a value twice"
        if self.way == "load" and not (self.rates or self.callers or self.arrivals):
            yield "no load is given; give --rate, --concurrency or --trace"
        if self.way == "ramp" and 1 not in self.callers:
            yield "concurrency of a ramp lacks 1: the knee is relative to the idle mesh"
        if self.way == "sweep":
            yield from self._sweep_problems()
        yield from out_of_range(
            ("seconds", self.seconds, 0 < self.seconds <= 86_400, "above 0, up to 86,400"),
            ("calls", self.least_calls, 0 <= self.least_calls <= 10_000_000, "0 to 10,000,000"),
            (
                "longest",
                self.longest_s,
                self.seconds <= self.longest_s,
                f"from seconds, which is {self.seconds:g}",
            ),
            ("warm-up", self.warm_up, 0 <= self.warm_up <= 100_000, "0 to 100,000"),
            ("seed", self.seed, self.seed >= 0, "from 0"),
            ("processes", self.processes, 1 <= self.processes <= 256, "1 to 256"),
        )
        if (slo := self.slo) is not None:
            yield from out_of_range(
                ("slo-ms", slo.latency_ms, slo.latency_ms > 0, "above 0"),
                ("slo-first-ms", slo.first_ms, slo.first_ms is None or slo.first_ms > 0, "above 0"),
                ("slo-share", slo.share, 0 < slo.share <= 1, "above 0, up to 1"),
            )

    def _sweep_problems(self) -> Iterator[str]:
        if not self.varied:
            yield f"nothing is varied; give --vary NAME=A,B,… of {', '.join(VARIED)}"
        if len({name for name, _ in self.varied}) < len(self.varied):
            yield "vary names something twice"
        cells = math.prod(len(values) for _, values in self.varied)
        if cells > _MOST_STEPS:
            yield f"vary makes {cells:,} steps; allowed: up to {_MOST_STEPS:,}"
            return
        known = set(self.settings.problems())
        for values in self.cells():
            given = {name: value for name, value in values.items() if name != "concurrency"}
            for problem in replace(self.settings, **settings_values(given)).problems():
                if problem not in known:
                    known.add(problem)
                    yield f"vary: {problem}"
            callers = values.get("concurrency", 1)
            if callers is None or not 1 <= callers <= _MOST_CALLERS:
                problem = f"vary: concurrency is {callers}; allowed: 1 to {_MOST_CALLERS:,}"
                if problem not in known:
                    known.add(problem)
                    yield problem

    def cells(self) -> Iterator[dict[str, float | None]]:
        """Yield all combinations of a sweep's values."""
        names = [name for name, _ in self.varied]
        for values in itertools.product(*(values for _, values in self.varied)):
            yield dict(zip(names, values, strict=True))

    def as_settings(self) -> dict[str, Any]:
        """Return everything that decides the results. A run resumes only with the same."""
        slo = None if self.slo is None else [self.slo.latency_ms, self.slo.first_ms, self.slo.share]
        return {
            "way": self.way,
            "settings": self.settings.as_dict(),
            "rates": list(self.rates),
            "callers": list(self.callers),
            "arrivals": [len(self.arrivals), sum(self.arrivals)],
            "varied": [[name, list(values)] for name, values in self.varied],
            "seconds": self.seconds,
            "least_calls": self.least_calls,
            "longest_s": self.longest_s,
            "seed": self.seed,
            "slo": slo,
            "processes": self.processes,
        }

    def length_s(self, per_s: float) -> float:
        """Return the duration of a step with about ``per_s`` calls a second."""
        wanted = self.least_calls / per_s if per_s > 0 else self.seconds
        return min(max(self.seconds, wanted), self.longest_s)


def settings_values(values: dict[str, float | None]) -> dict[str, Any]:
    """Return a sweep's values by the names of the settings' fields."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        match name:
            case "N":
                found["n"] = None if value is None else int(value)
            case "k":
                found["k"] = None if value is None else int(value)
            case "alpha":
                found["alpha"] = value
    return found


def closed_step(plan: LoadPlan, callers: int, idle_s: float, cores: int) -> Step:
    """Return a closed-loop step, long enough for the plan's calls if every core serves one at a time."""
    per_s = min(callers, max(cores, 1)) / idle_s if idle_s > 0 else 0.0
    return Step(f"closed-{callers}", "closed", plan.length_s(per_s), plan.settings, callers=callers)


def open_step(plan: LoadPlan, rate: float, name: str = "") -> Step:
    """Return an open-loop step. Each rate has its own arrivals."""
    seed = plan.seed + round(1e6 * rate)
    return Step(name or f"open-{rate:.4g}", "open", plan.length_s(rate), plan.settings, rate=rate, seed=seed)


def trace_step(plan: LoadPlan) -> Step:
    """Return the step that plays the trace."""
    seconds = max(plan.arrivals[-1], 1e-3)
    return Step("trace", "trace", seconds, plan.settings, arrivals=plan.arrivals)


def sweep_step(plan: LoadPlan, values: dict[str, float | None], idle_s: float, cores: int) -> Step:
    """Return one step of a sweep: waiting callers, or calls at the plan's rate."""
    name = ",".join(f"{key}={'none' if value is None else f'{value:g}'}" for key, value in values.items())
    plan = replace(plan, settings=replace(plan.settings, **settings_values(values)))
    if plan.rates:
        return open_step(plan, plan.rates[0], name)
    given = values.get("concurrency")
    callers = int(given) if given is not None else (plan.callers or (1,))[0]
    return replace(closed_step(plan, callers, idle_s, cores), name=name)


def ramp_rates(plan: LoadPlan, saturation: float) -> Sequence[float]:
    """Return the rates of a ramp, ascending: those given, or shares of the saturation."""
    return sorted(plan.rates) if plan.rates else [float(f"{share * saturation:.3g}") for share in SHARES]
