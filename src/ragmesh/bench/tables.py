"""A run as tables."""

import math
from collections.abc import Iterator

from ragcore.intervals import BootstrapInterval
from raglab.studies.tables import Cell, Column, Table, text
from ragmesh.bench.comparison import Comparison
from ragmesh.bench.prediction import off_by
from ragmesh.bench.run import Run, blamed, load_name
from ragmesh.bench.step import Measured, Spread

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


def run_tables(run: Run) -> Iterator[Table]:
    """All tables of a run, the most telling first."""
    if run.knee is not None:
        yield knee_table(run)
    yield loads_table(run)
    if any(len(one.first_ms()) for one in run.steps):
        yield text_table(run)
    yield stages_table(run)
    yield bottleneck_table(run)
    if any(one.codes().keys() - {"OK"} or one.degraded() for one in run.steps):
        yield errors_table(run)
    yield quantities_table(run)


def knee_table(run: Run) -> Table:
    """The knee as it was measured, and as each model predicts it."""
    knee = run.knee
    assert knee is not None  # noqa: S101 - whoever calls it has looked
    measured = BootstrapInterval(knee.rate, knee.low, knee.high, 0.95, "percentile", 0, 0)
    rows: list[tuple[Cell, ...]] = [
        ("measured" if knee.reached else "measured: not reached", measured, None, None)
    ]
    for one in run.predicted:
        off = 100 * off_by(one.knee, knee.rate) if knee.reached else math.nan
        rows.append((one.model, one.knee, off, one.saturation))
    if run.slo_rate is not None and run.slo is not None:
        rate, tried = run.slo_rate
        first = f", first text {run.slo.first_ms:.0f} ms" if run.slo.first_ms is not None else ""
        held = f"{run.slo.share:.0%} within {run.slo.latency_ms:.0f} ms{first}"
        rows.append((held if tried else f"{held}: not reached", rate, None, None))
    return Table(
        "knee",
        "Knee: where calls take twice as long as alone",
        (
            text("model", ""),
            Column("rate", "calls per second"),
            Column("off", "off by, %"),
            Column("saturation", "saturated at"),
        ),
        tuple(rows),
        f"Alone a call takes {knee.idle_ms:.0f} ms in the mean. The models know only of callers who wait for "
        "each answer, and of no load at a rate. The first takes calls to share the mesh, the second to be "
        "served one after the other: a mesh is something of both, and its knee should lie about there. "
        "Intervals: 95 %, blocks of calls resampled.",
    )


def loads_table(run: Run) -> Table:
    """What became of calls under each load."""
    rows = []
    for one in run.steps:
        spread = Spread.of(one.latencies_ms())
        good = one.goodput_per_s(run.slo) if run.slo is not None else math.nan
        rows.append(
            (
                _name(run, one),
                len(one.counted),
                one.offered_per_s if one.step.kind != "closed" else math.nan,
                one.completed_per_s,
                good,
                100 * one.error_share,
                spread.mean,
                spread.p50,
                spread.p90,
                spread.p95,
                spread.p99,
                spread.most,
            )
        )
    note = "Latency, in milliseconds, counts from when a call was due, not from when it was sent."
    if run.slo is not None:
        note += f" Good: answered within {run.slo.latency_ms:.0f} ms, nothing degraded."
    return Table(
        "loads",
        "Latency by load",
        (
            text("load", "load"),
            Column("calls", "calls"),
            Column("offered", "due/s"),
            Column("completed", "done/s"),
            Column("good", "good/s"),
            Column("errors", "failed, %"),
            Column("mean", "mean"),
            Column("p50", "p50"),
            Column("p90", "p90"),
            Column("p95", "p95"),
            Column("p99", "p99"),
            Column("most", "most"),
        ),
        tuple(rows),
        note,
    )


def text_table(run: Run) -> Table:
    """When text came."""
    rows = []
    for one in run.steps:
        first = Spread.of(one.first_ms())
        gap_p50, gap_p99 = one.gaps.percentiles([50, 99])
        rows.append((_name(run, one), first.p50, first.p95, first.p99, one.gaps.mean, gap_p50, gap_p99))
    return Table(
        "text",
        "First text, and between pieces of text",
        (
            text("load", "load"),
            Column("first_p50", "first text p50, ms"),
            Column("first_p95", "p95"),
            Column("first_p99", "p99"),
            Column("gap_mean", "between pieces, mean"),
            Column("gap_p50", "p50"),
            Column("gap_p99", "p99"),
        ),
        tuple(rows),
        "A piece is what the generator sends at once, one token or more.",
    )


def stages_table(run: Run) -> Table:
    """Where calls spend their time."""
    names = list(dict.fromkeys(name for one in run.steps for name in one.stages_ms()))
    rows: list[tuple[Cell, ...]] = []
    for one in run.steps:
        stages = one.stages_ms()
        late = Spread.of(one.late_ms()).mean
        known = {name: Spread.of(values).mean for name, values in stages.items()}
        rest = Spread.of(one.latencies_ms()).mean - late - sum(v for v in known.values() if not math.isnan(v))
        rows.append((_name(run, one), late, *(known.get(name, math.nan) for name in names), rest))
    columns = (
        text("load", "load"),
        Column("late", "sent late"),
        *(Column(name, name) for name in names),
        Column("rest", "rest"),
    )
    note = "Means in milliseconds. What stages do not tell of is the wire, the client and what runs between."
    return Table("stages", "Stages", columns, tuple(rows), note)


def bottleneck_table(run: Run) -> Table:
    """Who held calls up."""
    services = list(dict.fromkeys(name for one in run.steps for name in one.witnessed.services_cpu_s))
    rows: list[tuple[Cell, ...]] = []
    for one in run.steps:
        who, why = blamed(run, one)
        share = one.client_cpu_s / (one.processes * one.elapsed_s) if one.elapsed_s else math.nan
        whole = one.witnessed.elapsed_s * one.witnessed.cores
        used = one.witnessed.services_cpu_s
        rows.append(
            (
                _name(run, one),
                who,
                100 * share,
                one.lags.p99,
                Spread.of(one.late_ms()).p99,
                100 * one.witnessed.machine_share,
                100 * one.witnessed.others_share(one.client_cpu_s),
                *(100 * used[name] / whole if whole and name in used else math.nan for name in services),
                why,
            )
        )
    return Table(
        "bottleneck",
        "Who held calls up",
        (
            text("load", "load"),
            text("bottleneck", "bottleneck"),
            Column("client", "client, % of a core each"),
            Column("lag", "its loop's lag p99, ms"),
            Column("late", "sent late p99, ms"),
            Column("machine", "machine busy, %"),
            Column("others", "others, %"),
            *(Column(name, f"{name}, %") for name in services),
            text("why", "why"),
        ),
        tuple(rows),
        "Services and others in shares of all cores of this machine.",
    )


def errors_table(run: Run) -> Table:
    """What failed, and what degraded."""
    rows: list[tuple[Cell, ...]] = []
    for one in run.steps:
        for code, count in one.codes().items():
            if code != "OK":
                rows.append((_name(run, one), code, count, 100 * count / len(one.counted)))
        for stage, count in one.degraded().items():
            rows.append((_name(run, one), f"degraded: {stage}", count, 100 * count / len(one.counted)))
    columns = (text("load", "load"), text("code", "code"), Column("calls", "calls"), Column("share", "%"))
    return Table("errors", "Failed and degraded calls", columns, tuple(rows))


def quantities_table(run: Run) -> Table:
    """What calls cost, and what they were worth."""
    known = [(name, label) for name, label in _TOKENS if any(name in one.quantities() for one in run.steps)]
    rows: list[tuple[Cell, ...]] = []
    for one in run.steps:
        found = one.quantities()
        means = (Spread.of(found[name]).mean if name in found else math.nan for name, _ in known)
        rows.append((_name(run, one), *means))
    columns = (text("load", "load"), *(Column(name, label) for name, label in known))
    return Table("quantities", "A call, in the mean", columns, tuple(rows))


def comparison_table(comparison: Comparison) -> Table:
    """Two runs."""
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
        "Times in milliseconds; of errors the difference of shares instead of a ratio. Intervals: 95 %, of "
        "times from blocks of calls resampled, of shares by Newcombe's method.",
    )


def _name(run: Run, measured: Measured) -> str:
    name = measured.step.name if run.way == "sweep" else load_name(measured)
    return f"{name} (interrupted)" if measured.interrupted else name
