"""What a run does: which loads, for how long; and what of it makes no sense, all at once."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ragmesh.bench.settings import Settings
from ragmesh.bench.step import Slo, Step

Way = Literal["load", "ramp", "sweep"]

SHARES: Final = (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of what saturates a mesh: the rates of a ramp."""
VARIED: Final = ("N", "k", "alpha", "concurrency")
"""What a sweep may vary."""
_LEAST_RATE: Final = 0.001
_MOST_RATE: Final = 100_000.0
_MOST_CALLERS: Final = 10_000
_MOST_STEPS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Attributes:
        way: some loads; a ramp to the knee; or the same load under several settings.
        settings: what is asked for.
        rates: of open loops, calls per second; of a ramp empty for shares of what saturates it.
        callers: of closed loops.
        arrivals: of a trace, in seconds.
        varied: what a sweep varies: name and values; an alpha of None is the deterministic ranking.
        seconds: least length of a step.
        least_calls: calls that a step is made long enough for.
        longest_s: a step is not made longer than this for that.
        warm_up: calls before the first step, which are not counted.
        seed: of arrivals and of resamples.
        slo: what a good call is; None takes four times the latency of the idle mesh.
    """

    way: Way
    settings: Settings
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
        """What makes no sense, a line each."""
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
            yield "concurrency of a ramp lacks 1: the idle mesh is what the knee is held against"
        if self.way == "sweep":
            yield from self._sweep_problems()
        if not 0 < self.seconds <= 86_400:
            yield f"seconds is {self.seconds:g}; allowed: above 0, up to 86,400"
        if not 0 <= self.least_calls <= 10_000_000:
            yield f"calls is {self.least_calls}; allowed: 0 to 10,000,000"
        if not self.seconds <= self.longest_s:
            yield f"longest is {self.longest_s:g}; allowed: from seconds, which is {self.seconds:g}"
        if not 0 <= self.warm_up <= 100_000:
            yield f"warm-up is {self.warm_up}; allowed: 0 to 100,000"
        if self.seed < 0:
            yield f"seed is {self.seed}; allowed: from 0"
        if not 1 <= self.processes <= 256:
            yield f"processes is {self.processes}; allowed: 1 to 256"
        if self.slo is not None:
            if not self.slo.latency_ms > 0:
                yield f"slo-ms is {self.slo.latency_ms:g}; allowed: above 0"
            if self.slo.first_ms is not None and not self.slo.first_ms > 0:
                yield f"slo-first-ms is {self.slo.first_ms:g}; allowed: above 0"
            if not 0 < self.slo.share <= 1:
                yield f"slo-share is {self.slo.share:g}; allowed: above 0, up to 1"

    def _sweep_problems(self) -> Iterator[str]:
        if not self.varied:
            yield f"nothing is varied; give --vary NAME=A,B,… of {', '.join(VARIED)}"
        if len({name for name, _ in self.varied}) < len(self.varied):
            yield "vary names something twice"
        cells = math.prod(len(values) for _, values in self.varied)
        if cells > _MOST_STEPS:
            yield f"vary makes {cells:,} steps; allowed: up to {_MOST_STEPS:,}"
            return
        told = set(self.settings.problems())
        for values in self.cells():
            given = {name: value for name, value in values.items() if name != "concurrency"}
            for problem in self.settings.with_values(settings_values(given)).problems():
                if problem not in told:
                    told.add(problem)
                    yield f"vary: {problem}"
            callers = values.get("concurrency", 1)
            if callers is None or not 1 <= callers <= _MOST_CALLERS:
                problem = f"vary: concurrency is {callers}; allowed: 1 to {_MOST_CALLERS:,}"
                if problem not in told:
                    told.add(problem)
                    yield problem

    def cells(self) -> Iterator[dict[str, float | None]]:
        """All combinations of what a sweep varies."""
        names = [name for name, _ in self.varied]
        for values in itertools.product(*(values for _, values in self.varied)):
            yield dict(zip(names, values, strict=True))

    def as_settings(self) -> dict[str, Any]:
        """What decides the results: a run goes on only with the same."""
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
        """How long a step is that has about ``per_s`` calls a second."""
        wanted = self.least_calls / per_s if per_s > 0 else self.seconds
        return min(max(self.seconds, wanted), self.longest_s)


def settings_values(values: dict[str, float | None]) -> dict[str, Any]:
    """Values of a sweep by the names of :class:`~ragmesh.bench.settings.Settings`."""
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


def closed_step(plan: Plan, callers: int, idle_s: float, cores: int) -> Step:
    """Callers who wait, long enough for the plan's calls if as many are served at once as there are cores."""
    per_s = min(callers, max(cores, 1)) / idle_s if idle_s > 0 else 0.0
    return Step(f"closed-{callers}", "closed", plan.length_s(per_s), plan.settings, callers=callers)


def open_step(plan: Plan, rate: float, name: str = "") -> Step:
    """Calls at a rate; each rate has arrivals of its own."""
    seed = plan.seed + round(1e6 * rate)
    return Step(name or f"open-{rate:.4g}", "open", plan.length_s(rate), plan.settings, rate=rate, seed=seed)


def trace_step(plan: Plan) -> Step:
    """Calls as they once came."""
    seconds = max(plan.arrivals[-1], 1e-3)
    return Step("trace", "trace", seconds, plan.settings, arrivals=plan.arrivals)


def sweep_step(plan: Plan, values: dict[str, float | None], idle_s: float, cores: int) -> Step:
    """One cell of a sweep: callers who wait, or the plan's rate."""
    name = ",".join(f"{key}={'none' if value is None else f'{value:g}'}" for key, value in values.items())
    settings = plan.settings.with_values(settings_values(values))
    if plan.rates:
        rate = plan.rates[0]
        seed = plan.seed + round(1e6 * rate)
        return Step(name, "open", plan.length_s(rate), settings, rate=rate, seed=seed)
    given = values.get("concurrency")
    callers = int(given) if given is not None else (plan.callers or (1,))[0]
    per_s = min(callers, max(cores, 1)) / idle_s if idle_s > 0 else 0.0
    return Step(name, "closed", plan.length_s(per_s), settings, callers=callers)


def ramp_rates(plan: Plan, saturation: float) -> Sequence[float]:
    """The rates of a ramp, rising: those given, or shares of what saturates the mesh."""
    return sorted(plan.rates) if plan.rates else [float(f"{share * saturation:.3g}") for share in SHARES]
