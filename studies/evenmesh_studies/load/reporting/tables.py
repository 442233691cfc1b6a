"""The tables of a run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from evenmesh_core.arrays import FloatArray
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.studies.tables import Cell, Column, Table, text
from evenmesh_studies.load.analysis.comparison import Comparison
from evenmesh_studies.load.analysis.prediction import off_by
from evenmesh_studies.load.run import LoadRun, bottleneck_of, load_name
from evenmesh_studies.load.step import Distribution, StepResult

_TOKENS = (
    ("answers", "answers"),
    ("pairs", "pairs reranked"),
    ("prompt_tokens", "tokens read"),
    ("reused_tokens", "of them known before"),
    ("written_tokens", "tokens written"),
    ("queue_ms", "waited at the model, ms"),
    ("batch_rows", "rows of its batch"),
    ("ee_d_norm", "EE-D, of its bound"),
    ("expected_utility", "expected utility"),
)


_StepColumn = tuple[Column, Callable[[StepResult], Cell]]
"""A column, and its value for a step."""


def run_tables(run: LoadRun) -> Iterator[Table]:
    """Yield the tables of a run, the most important first."""
    if run.knee is not None:
        yield knee_table(run)
    yield loads_table(run)
    if any(len(one.first_ms()) for one in run.steps):
        yield text_table(run)
    yield stages_table(run)
    yield bottleneck_table(run)
    yield processors_table(run)
    if any(one.codes().keys() - {"OK"} or one.degraded() for one in run.steps):
        yield errors_table(run)
    yield quantities_table(run)


def knee_table(run: LoadRun) -> Table:
    """Return the measured knee and the predictions of the models."""
    knee = run.knee
    assert knee is not None  # noqa: S101 - run_tables checks it
    measured = BootstrapInterval(knee.rate, knee.low, knee.high, 0.95, "percentile", 0, 0)
    rows: list[tuple[Cell, ...]] = [
        ("measured" if knee.reached else "measured: not reached", measured, None, None)
    ]
    for one in run.predicted:
        off = f"{off_by(one.knee, knee.rate):+.0%}".replace("-", "−") if knee.reached else None
        rows.append((one.model, one.knee, off, one.saturation))
    if run.slo_rate is not None and run.slo is not None:
        rate, tried = run.slo_rate
        first = f", first text {run.slo.first_ms:.0f} ms" if run.slo.first_ms is not None else ""
        held = f"{run.slo.share:.0%} within {run.slo.latency_ms:.0f} ms{first}"
        rows.append((held if tried else f"{held}: not reached", rate, None, None))
    return Table(
        "knee",
        "Knee: calls take twice as long as alone",
        (
            text("model", ""),
            Column("rate", "calls per second"),
            Column("off", "off by"),
            Column("saturation", "saturated at"),
        ),
        tuple(rows),
        f"Alone a call takes {knee.idle_ms:.0f} ms on average. The models use only the steps of callers who "
        "wait. In the first, calls share the mesh; in the second they are served one after the other. A mesh "
        "lies between, and so should its knee. Intervals: 95 %, blocks of calls resampled.",
    )


def loads_table(run: LoadRun) -> Table:
    """Return the outcome of calls under each load."""
    slo = run.slo
    note = "Latency, in milliseconds, counts from when a call was due, not from when it was sent."
    if slo is not None:
        note += f" Good: answered within {slo.latency_ms:.0f} ms, nothing degraded."
    columns: list[_StepColumn] = [
        (Column("calls", "calls"), lambda one: len(one.counted)),
        (Column("offered", "due/s"), _offered),
        (Column("completed", "done/s"), lambda one: one.completed_per_s),
        (Column("good", "good/s"), lambda one: math.nan if slo is None else one.goodput_per_s(slo)),
        (Column("errors", "failed, %"), lambda one: 100 * one.error_share),
        *(
            (Column(name, name), partial(_latency, name))
            for name in ("mean", "p50", "p90", "p95", "p99", "most")
        ),
    ]
    return _by_load(run, "loads", "Latency by load", columns, note)


def text_table(run: LoadRun) -> Table:
    """Return the times of text."""
    columns: list[_StepColumn] = [
        (Column("first_p50", "first text p50, ms"), lambda one: Distribution.of(one.first_ms()).p50),
        (Column("first_p95", "p95"), lambda one: Distribution.of(one.first_ms()).p95),
        (Column("first_p99", "p99"), lambda one: Distribution.of(one.first_ms()).p99),
        (Column("gap_mean", "between pieces, mean"), lambda one: one.gaps.mean),
        (Column("gap_p50", "p50"), lambda one: one.gaps.percentiles([50])[0]),
        (Column("gap_p99", "p99"), lambda one: one.gaps.percentiles([99])[0]),
    ]
    note = "A piece is what the generator sends at once, one token or more."
    return _by_load(run, "text", "Times of text", columns, note)


def stages_table(run: LoadRun) -> Table:
    """Return the mean time of each stage."""

    def rest(one: StepResult) -> float:
        known = [Distribution.of(values).mean for values in one.stages_ms().values()]
        return _latency("mean", one) - _late(one) - sum(value for value in known if not math.isnan(value))

    names = dict.fromkeys(name for one in run.steps for name in one.stages_ms())
    columns: list[_StepColumn] = [
        (Column("late", "sent late"), _late),
        *((Column(name, name), partial(_mean_of, StepResult.stages_ms, name)) for name in names),
        (Column("rest", "rest"), rest),
    ]
    note = "Means in milliseconds. The rest is the network, the client, and work between stages."
    return _by_load(run, "stages", "Stages", columns, note)


def bottleneck_table(run: LoadRun) -> Table:
    """Return what delayed calls under each load."""
    columns: list[_StepColumn] = [
        (text("bottleneck", "bottleneck"), lambda one: bottleneck_of(run, one)[0]),
        (text("why", "why"), lambda one: bottleneck_of(run, one)[1]),
    ]
    return _by_load(run, "bottleneck", "Bottleneck", columns)


def processors_table(run: LoadRun) -> Table:
    """Return which processes computed under each load, and how late the client was."""

    def client_share(one: StepResult) -> float:
        return 100 * one.client_cpu_s / (one.processes * one.elapsed_s) if one.elapsed_s else math.nan

    def service_share(name: str, one: StepResult) -> float:
        whole, used = one.usage.elapsed_s * one.usage.cores, one.usage.services_cpu_s
        return 100 * used[name] / whole if whole and name in used else math.nan

    services = dict.fromkeys(name for one in run.steps for name in one.usage.services_cpu_s)
    columns: list[_StepColumn] = [
        (Column("machine", "all"), lambda one: 100 * one.usage.machine_share),
        *((Column(name, name), partial(service_share, name)) for name in services),
        (Column("others", "others"), lambda one: 100 * one.usage.others_share(one.client_cpu_s)),
        (Column("client", "client"), client_share),
        (Column("lag", "its lag, ms"), lambda one: one.lags.p99),
    ]
    note = (
        "Per cent of all cores of this machine; of the client, per cent of one core for each of its "
        "processes. Lag is how long its event loop was held up (p99)."
    )
    return _by_load(run, "processors", "Processors", columns, note)


def errors_table(run: LoadRun) -> Table:
    """Return failed and degraded calls."""
    rows: list[tuple[Cell, ...]] = []
    for one in run.steps:
        for code, count in one.codes().items():
            if code != "OK":
                rows.append((_name(run, one), code, count, 100 * count / len(one.counted)))
        for stage, count in one.degraded().items():
            rows.append((_name(run, one), f"degraded: {stage}", count, 100 * count / len(one.counted)))
    columns = (text("load", "load"), text("code", "code"), Column("calls", "calls"), Column("share", "%"))
    return Table("errors", "Failed and degraded calls", columns, tuple(rows))


def quantities_table(run: LoadRun) -> Table:
    """Return the mean cost and value of calls."""
    known = [(name, label) for name, label in _TOKENS if any(name in one.quantities() for one in run.steps)]
    columns: list[_StepColumn] = [
        (Column(name, label), partial(_mean_of, StepResult.quantities, name)) for name, label in known
    ]
    return _by_load(run, "quantities", "Mean of a call", columns)


def comparison_table(comparison: Comparison) -> Table:
    """Return the changes between two runs."""
    rows: list[tuple[Cell, ...]] = [
        (
            change.step,
            change.quantity,
            change.before,
            change.after,
            BootstrapInterval(change.ratio, change.low, change.high, 0.95, "percentile", 0, 0),
            change.verdict,
        )
        for change in comparison.changes
    ]
    return Table(
        "comparison",
        "Two runs",
        (
            text("load", "load"),
            text("quantity", "quantity"),
            Column("before", "before"),
            Column("after", "after"),
            Column("ratio", "after / before"),
            text("verdict", "verdict"),
        ),
        tuple(rows),
        "Times in milliseconds; of errors the difference of shares instead of a ratio. Intervals: 95 %; of "
        "times by resampling blocks of calls, of shares by Newcombe's method.",
    )


def _name(run: LoadRun, measured: StepResult) -> str:
    name = measured.step.name if run.way == "sweep" else load_name(measured)
    return f"{name} (interrupted)" if measured.interrupted else name


def _by_load(run: LoadRun, name: str, title: str, columns: Sequence[_StepColumn], note: str = "") -> Table:
    """Return a table with a row for each step."""
    rows = tuple((_name(run, one), *(_rounded(value(one)) for _, value in columns)) for one in run.steps)
    return Table(name, title, (text("load", "load"), *(column for column, _ in columns)), rows, note)


def _rounded(cell: Cell) -> Cell:
    """Return a number with three digits, or all those before its point: a load test knows no more."""
    if not isinstance(cell, float) or math.isnan(cell):
        return cell
    digits = max(0, 3 - len(f"{abs(cell):.0f}"))
    return f"{cell:,.{digits}f}".replace("-", "−")


def _latency(name: str, one: StepResult) -> float:
    """Return the mean, a percentile or the maximum of latency."""
    value: float = getattr(Distribution.of(one.latencies_ms()), name)
    return value


def _offered(one: StepResult) -> float:
    return math.nan if one.step.kind == "closed" else one.offered_per_s


def _late(one: StepResult) -> float:
    return Distribution.of(one.late_ms()).mean


def _mean_of(
    quantities: Callable[[StepResult], Mapping[str, FloatArray]], name: str, one: StepResult
) -> float:
    """Return the mean of one of a step's quantities; ``nan`` where it has none."""
    found = quantities(one)
    return Distribution.of(found[name]).mean if name in found else math.nan
