"""One load, and what was measured under it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from ragcore.arrays import FloatArray
from ragmesh.bench.arrivals import poisson
from ragmesh.bench.call import Call, Outcome
from ragmesh.bench.histograms import Histogram
from ragmesh.bench.settings import Settings
from ragmesh.bench.witness import Witnessed

Kind = Literal["open", "closed", "trace"]

TRANSIENT: Final = 0.1
"""Share of a step at its beginning whose calls are made and not counted: the mesh was empty before."""

_TIMES: Final = ("intended_s", "sent_s", "ended_s")


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good call is.

    Attributes:
        latency_ms: longest time from when it was due to its end.
        first_ms: longest time from when it was due to its first text; None for any.
        share: share of calls that have to be good, in (0, 1].
    """

    latency_ms: float
    first_ms: float | None = None
    share: float = 0.95


@dataclass(frozen=True, slots=True)
class Step:
    """One load.

    Attributes:
        name: no other step of a run has it.
        kind: calls at a rate, from callers who wait, or as they once came.
        seconds: how long calls begin.
        settings: what is asked for.
        rate: calls per second, of an open loop.
        callers: callers, of a closed loop.
        arrivals: when calls are due in seconds, of a trace.
        seed: of the arrivals.
        most: calls of a closed loop at most; None for as many as there is time for.
    """

    name: str
    kind: Kind
    seconds: float
    settings: Settings
    rate: float = math.nan
    callers: int = 0
    arrivals: tuple[float, ...] = ()
    seed: int = 0
    most: int | None = None

    def due(self) -> FloatArray:
        """When calls are due, of an open loop or a trace; the same whenever it is asked."""
        if self.kind == "trace":
            return np.array(self.arrivals)
        return poisson(self.rate, self.seconds, self.seed)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread; milliseconds where it is a time, ``nan`` where there is no value."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float] | FloatArray) -> "Spread":
        """The spread of values, ``nan`` left out."""
        known = np.asarray(values, dtype=np.float64)
        known = known[~np.isnan(known)]
        if not known.size:
            return cls(0, *[math.nan] * 6)
        p50, p90, p95, p99 = (float(one) for one in np.percentile(known, [50, 90, 95, 99]))
        return cls(len(known), float(known.mean()), p50, p90, p95, p99, float(known.max()))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured under one load.

    Attributes:
        step: the load.
        calls: all that ended, by when they were due.
        gaps: milliseconds between pieces of text.
        lags: how late the client's event loop was, in milliseconds.
        elapsed_s: until the last call's end.
        client_cpu_s: what all processes of the client computed. Seconds.
        processes: of the client.
        witnessed: who else computed.
        interrupted: whether it was stopped before its time.
    """

    step: Step
    calls: Sequence[Call]
    gaps: Histogram
    lags: Spread
    elapsed_s: float
    client_cpu_s: float
    processes: int
    witnessed: Witnessed
    interrupted: bool = False

    @property
    def window(self) -> tuple[float, float]:
        """From when and until when calls that are due are counted. Seconds."""
        end = self.step.seconds
        if self.interrupted:
            end = max((call.intended_s for call in self.calls), default=0.0)
        return TRANSIENT * end, end

    @property
    def counted(self) -> Sequence[Call]:
        """The calls that are counted: those due after the transient."""
        begin, end = self.window
        return [call for call in self.calls if begin <= call.intended_s <= end]

    @property
    def offered_per_s(self) -> float:
        """Calls that were due, per second; ``nan`` where nothing was."""
        return self._per_s(len(self.counted))

    @property
    def completed_per_s(self) -> float:
        """Calls that ended well within the window, per second."""
        begin, end = self.window
        return self._per_s(sum(call.ok and begin <= call.ended_s <= end for call in self.calls))

    @property
    def kept_up(self) -> float:
        """Share of what was due in the window that had ended at its end, whatever was due before; 1 or a
        little less where the mesh keeps up."""
        begin, end = self.window
        due = len(self.counted)
        ended = sum(begin <= call.ended_s <= end for call in self.calls)
        return ended / due if due else math.nan

    def good_share(self, slo: Slo) -> float:
        """Share of the calls that were good: answered, nothing degraded, in time."""
        counted = self.counted
        return sum(_good(call, slo) for call in counted) / len(counted) if counted else math.nan

    def goodput_per_s(self, slo: Slo) -> float:
        """Good calls per second."""
        return self._per_s(sum(_good(call, slo) for call in self.counted))

    def latencies_ms(self) -> FloatArray:
        """Latencies of the counted calls that ended well, by when they were due."""
        return np.array([call.latency_ms for call in self.counted if call.ok])

    def first_ms(self) -> FloatArray:
        """Times to first text of the counted calls that ended well."""
        return np.array([1e3 * (call.outcome.first_s - call.intended_s) for call in self.counted if call.ok])

    def late_ms(self) -> FloatArray:
        """How much later than they were due counted calls were sent."""
        return np.array([call.late_ms for call in self.counted])

    def codes(self) -> dict[str, int]:
        """Counted calls by their code, the most frequent first."""
        return dict(Counter(call.outcome.code for call in self.counted).most_common())

    def degraded(self) -> dict[str, int]:
        """Counted calls by a stage that degraded."""
        return dict(Counter(stage for call in self.counted for stage in set(call.outcome.degraded)))

    @property
    def error_share(self) -> float:
        """Share of the counted calls that failed."""
        counted = self.counted
        return sum(not call.ok for call in counted) / len(counted) if counted else math.nan

    def stages_ms(self) -> dict[str, FloatArray]:
        """Milliseconds of each stage of the counted calls that ended well, in the order they ran."""
        return _columns([call.outcome.stages for call in self.counted if call.ok])

    def quantities(self) -> dict[str, FloatArray]:
        """Everything else that was measured on the counted calls that ended well, by name."""
        return _columns([call.outcome.quantities for call in self.counted if call.ok])

    def _per_s(self, calls: int) -> float:
        begin, end = self.window
        return calls / (end - begin) if end > begin else math.nan


def _good(call: Call, slo: Slo) -> bool:
    if not call.ok or call.outcome.degraded or call.latency_ms > slo.latency_ms:
        return False
    first = 1e3 * (call.outcome.first_s - call.intended_s)
    # A call without any text is not late with it.
    return slo.first_ms is None or math.isnan(first) or first <= slo.first_ms


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, FloatArray]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}


def as_record(measured: Measured) -> dict[str, Any]:
    """All that was measured under one load, for one line of a file."""
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
        "witnessed": asdict(measured.witnessed),
        "interrupted": measured.interrupted,
    }


def from_record(record: Mapping[str, Any]) -> Measured:
    """What :func:`as_record` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    step = dict(record["step"])
    step["settings"] = Settings(**step["settings"])
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
    return Measured(
        Step(**step),
        calls,
        Histogram.decoded(record["gaps_ms"]),
        _spread(record["lags_ms"]),
        record["elapsed_s"],
        record["client_cpu_s"],
        record["processes"],
        Witnessed(**record["witnessed"]),
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


def _spread(record: Mapping[str, Any]) -> Spread:
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in record.items()}
    return Spread(**known)
