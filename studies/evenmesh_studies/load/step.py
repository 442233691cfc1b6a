"""One load and its measurements."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_studies.load.analysis.histograms import Histogram
from evenmesh_studies.load.calls.arrivals import poisson
from evenmesh_studies.load.calls.call import Call, Outcome
from evenmesh_studies.load.resource_monitor import ResourceUsage
from evenmesh_studies.load.settings import CallSettings

Kind = Literal["open", "closed", "trace"]

TRANSIENT: Final = 0.1
"""Share of a step at its beginning whose calls are not counted, while the mesh fills up."""

_TIMES: Final = ("intended_s", "sent_s", "ended_s")


@dataclass(frozen=True, slots=True)
class Slo:
    """Definition of a good call.

    Attributes:
        latency_ms: longest time from due to end.
        first_ms: longest time from due to the first text; None for any.
        share: of calls that must be good, in (0, 1].
    """

    latency_ms: float
    first_ms: float | None = None
    share: float = 0.95


@dataclass(frozen=True, slots=True)
class Step:
    """One load.

    Attributes:
        name: unique in a run.
        kind: open loop at a rate, closed loop of waiting callers, or a trace.
        seconds: duration in which calls begin.
        settings: of the calls.
        rate: calls per second, of an open loop.
        callers: of a closed loop.
        arrivals: due times of a trace in seconds.
        seed: of the arrivals.
        most: most calls of a closed loop; None for no limit.
    """

    name: str
    kind: Kind
    seconds: float
    settings: CallSettings
    rate: float = math.nan
    callers: int = 0
    arrivals: tuple[float, ...] = ()
    seed: int = 0
    most: int | None = None

    def due(self) -> FloatArray:
        """Return the due times of an open loop or a trace; deterministic."""
        if self.kind == "trace":
            return np.array(self.arrivals)
        return poisson(self.rate, self.seconds, self.seed)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a quantity; times in milliseconds; ``nan`` without values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float] | FloatArray) -> "Distribution":
        """Return the distribution of values without ``nan``."""
        known = np.asarray(values, dtype=np.float64)
        known = known[~np.isnan(known)]
        if not known.size:
            return cls(0, *[math.nan] * 6)
        p50, p90, p95, p99 = (float(one) for one in np.percentile(known, [50, 90, 95, 99]))
        return cls(len(known), float(known.mean()), p50, p90, p95, p99, float(known.max()))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The measurements of one load.

    Attributes:
        step: the load.
        calls: all that ended, by due time.
        gaps: milliseconds between pieces of text.
        lags: delays of the client's event loop in milliseconds.
        elapsed_s: seconds until the last call's end.
        client_cpu_s: processor time of all client processes in seconds.
        processes: number of client processes.
        usage: processor time of services and machine.
        interrupted: whether it was stopped early.
    """

    step: Step
    calls: Sequence[Call]
    gaps: Histogram
    lags: Distribution
    elapsed_s: float
    client_cpu_s: float
    processes: int
    usage: ResourceUsage
    interrupted: bool = False

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end, in seconds, of the due times that count."""
        end = self.step.seconds
        if self.interrupted:
            end = max((call.intended_s for call in self.calls), default=0.0)
        return TRANSIENT * end, end

    @property
    def counted(self) -> Sequence[Call]:
        """Calls due after the transient."""
        begin, end = self.window
        return [call for call in self.calls if begin <= call.intended_s <= end]

    @property
    def offered_per_s(self) -> float:
        """Due calls per second; ``nan`` without any."""
        return self._per_s(len(self.counted))

    @property
    def completed_per_s(self) -> float:
        """Successful calls per second that ended within the window."""
        begin, end = self.window
        return self._per_s(sum(call.ok and begin <= call.ended_s <= end for call in self.calls))

    @property
    def kept_up(self) -> float:
        """Calls that ended in the window over calls due in it; about 1 where the mesh keeps up."""
        begin, end = self.window
        due = len(self.counted)
        ended = sum(begin <= call.ended_s <= end for call in self.calls)
        return ended / due if due else math.nan

    def good_share(self, slo: Slo) -> float:
        """Return the share of calls that were good: answered, not degraded, in time."""
        counted = self.counted
        return sum(_good(call, slo) for call in counted) / len(counted) if counted else math.nan

    def goodput_per_s(self, slo: Slo) -> float:
        """Return good calls per second."""
        return self._per_s(sum(_good(call, slo) for call in self.counted))

    def latencies_ms(self) -> FloatArray:
        """Return the latencies of successful counted calls, by due time."""
        return np.array([call.latency_ms for call in self.counted if call.ok])

    def first_ms(self) -> FloatArray:
        """Return the times to first text of successful counted calls."""
        return np.array([1e3 * (call.outcome.first_s - call.intended_s) for call in self.counted if call.ok])

    def late_ms(self) -> FloatArray:
        """Return the delays of sending counted calls."""
        return np.array([call.late_ms for call in self.counted])

    def codes(self) -> dict[str, int]:
        """Count the counted calls by code, the most frequent first."""
        return dict(Counter(call.outcome.code for call in self.counted).most_common())

    def degraded(self) -> dict[str, int]:
        """Count the counted calls by degraded stage."""
        return dict(Counter(stage for call in self.counted for stage in set(call.outcome.degraded)))

    @property
    def error_share(self) -> float:
        """Share of the counted calls that failed."""
        counted = self.counted
        return sum(not call.ok for call in counted) / len(counted) if counted else math.nan

    def stages_ms(self) -> dict[str, FloatArray]:
        """Return the milliseconds of each stage of successful counted calls, in the order they ran."""
        return _columns([call.outcome.stages for call in self.counted if call.ok])

    def quantities(self) -> dict[str, FloatArray]:
        """Return all other quantities of successful counted calls, by name."""
        return _columns([call.outcome.quantities for call in self.counted if call.ok])

    def _per_s(self, calls: int) -> float:
        begin, end = self.window
        return calls / (end - begin) if end > begin else math.nan


def _good(call: Call, slo: Slo) -> bool:
    if not call.ok or call.outcome.degraded or call.latency_ms > slo.latency_ms:
        return False
    first = 1e3 * (call.outcome.first_s - call.intended_s)
    # A call without text cannot be late with it.
    return slo.first_ms is None or math.isnan(first) or first <= slo.first_ms


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, FloatArray]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}


def as_record(measured: StepResult) -> dict[str, Any]:
    """Return the measurements of one load as JSON values."""
    calls = measured.calls
    step = asdict(measured.step) | {"rate": _defined(measured.step.rate)}
    return {
        "step": step,
        "calls": {
            **{name: [round(getattr(call, name), 6) for call in calls] for name in _TIMES},
            "first_s": [_defined(round(call.outcome.first_s, 6)) for call in calls],
            "code": [call.outcome.code for call in calls],
            "degraded": [list(call.outcome.degraded) for call in calls],
            "stages": _listed([call.outcome.stages for call in calls]),
            "quantities": _listed([call.outcome.quantities for call in calls]),
        },
        "gaps_ms": measured.gaps.encoded(),
        "latency_ms": Histogram.of(measured.latencies_ms()).encoded(),
        "lags_ms": {name: _defined(value) for name, value in asdict(measured.lags).items()},
        "elapsed_s": measured.elapsed_s,
        "client_cpu_s": measured.client_cpu_s,
        "processes": measured.processes,
        "usage": asdict(measured.usage),
        "interrupted": measured.interrupted,
    }


def from_record(record: Mapping[str, Any]) -> StepResult:
    """Read what :func:`as_record` returned.

    Raises:
        KeyError, TypeError, ValueError: the record is not one.
    """
    step = dict(record["step"])
    step["settings"] = CallSettings(**step["settings"])
    step["arrivals"] = tuple(step["arrivals"])
    step["rate"] = math.nan if step["rate"] is None else step["rate"]
    columns = record["calls"]
    calls = []
    for place, (intended, sent, ended) in enumerate(zip(*(columns[name] for name in _TIMES), strict=True)):
        first = columns["first_s"][place]
        outcome = Outcome(
            code=columns["code"][place],
            first_s=math.nan if first is None else first,
            stages=_row(columns["stages"], place),
            quantities=_row(columns["quantities"], place),
            degraded=tuple(columns["degraded"][place]),
        )
        calls.append(Call(intended, sent, ended, outcome))
    return StepResult(
        Step(**step),
        calls,
        Histogram.decoded(record["gaps_ms"]),
        _spread(record["lags_ms"]),
        record["elapsed_s"],
        record["client_cpu_s"],
        record["processes"],
        ResourceUsage(**record["usage"]),
        record["interrupted"],
    )


def _listed(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    return {
        name: [_defined(round(float(value), 4)) for value in column]
        for name, column in _columns(rows).items()
    }


def _row(columns: Mapping[str, Sequence[float | None]], place: int) -> dict[str, float]:
    found = {name: values[place] for name, values in columns.items()}
    return {name: value for name, value in found.items() if value is not None}


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _spread(record: Mapping[str, Any]) -> Distribution:
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in record.items()}
    return Distribution(**known)
