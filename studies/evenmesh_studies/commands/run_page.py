"""Make the page of a run: its report, and curves over its measurements."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evenmesh.commands.views import NOBODY, configuration_shown, moment
from evenmesh.types.reports import Estimate, ExposureShare, Measurement, RunReport
from evenmesh_lab import figures, reports
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.curves import Curve, curve
from evenmesh_lab.studies.exposure import Share, curve_table
from evenmesh_lab.studies.tables import Cell, Column, Table, text

if TYPE_CHECKING:
    from evenmesh import Client

MEASURES = (
    ("EE-D, of its bound", "ee_d_norm"),
    ("EE-R, of its bound", "ee_r_norm"),
    ("expected utility", "expected_utility"),
    ("EU, of its maximum", "normalized_expected_utility"),
    ("vote agreement", "vote_agreement"),
    ("retriever error", "retriever_error"),
    ("hallucination", "hallucination_error"),
    ("extraction error", "extraction_error"),
    ("lucky guess", "lucky_guess"),
    ("R", "conversation_relevance"),
    ("GF", "conversation_group_fairness"),
    ("GFRC", "conversation_combined"),
)
"""Label and field of each measure of a report, except the stages."""

_CURVES = (
    ("disparity-quality", "ee_d_norm", "ee_r_norm"),
    ("disparity-utility", "ee_d_norm", "normalized_expected_utility"),
    ("quality-utility", "ee_r_norm", "normalized_expected_utility"),
)


def page(mesh: "Client", found: RunReport) -> str:
    """Make the page of a report that a client asked for: the entry point ``run`` of ``evenmesh.pages``."""
    from evenmesh_studies.commands.eval.outputs import reported

    with reported():
        # Measurements cover the whole run: beside a part of it they would mislead.
        whole = found.configuration is None and found.window == "all"
        return run_page(found, mesh.measurements(found.run_id) if whole else ())


def run_page(report: RunReport, measurements: Iterable[Measurement]) -> str:
    """Return one HTML page of a run or configuration.

    Args:
        report: of the evaluator.
        measurements: of its observations; empty to leave out curves.
    """
    drawn = {}
    for name, shares in (("exposure-providers", report.providers), ("exposure-passages", report.passages)):
        bars = figures.draw_exposure(
            [("", [_share(share) for share in shares])], num_queries=max(report.num_observations, 1)
        )
        if bars is not None:
            drawn[name] = bars
    curves = list(_curves(measurements))
    sections = [reports.Section("Measures", [_measures(report)])]
    if drawn:
        tables = [
            _shares("providers", "Exposure by provider", "provider", report.providers),
            _shares("passages", "Most exposed passages", "passage", report.passages),
        ]
        sections.append(reports.Section("Exposure", [table for table in tables if table.rows], drawn))
    if curves:
        names = dict.fromkeys(one.name for one in curves)
        pictures = {name: figures.draw_curves([one for one in curves if one.name == name]) for name in names}
        sections.append(reports.Section("Tradeoffs", [curve_table(curves)], pictures))
    if report.stages:
        sections.append(reports.Section("Time", [_stages(report)]))
    if report.degradations:
        sections.append(reports.Section("Degradations", [_degradations(report)]))
    return reports.page(reports.Report(heading(report), _facts(report), sections))


def heading(report: RunReport) -> str:
    """Return the title of a report."""
    if report.configuration is None:
        return f"Run {report.run_id}"
    return f"Configuration {configuration_shown(report.configuration)}"


def _facts(report: RunReport) -> list[tuple[str, str]]:
    windows = {"all": "all", "hour": "of the last hour", "day": "of the last 24 hours"}
    return [
        ("asks", f"{report.num_observations:,}, {windows[report.window]}"),
        ("rankings", f"{report.num_rankings:,}"),
        ("unanswered", f"{report.num_unanswered:,} samples"),
        ("first ask", moment(report.started_at)),
        ("latest ask", moment(report.updated_at)),
    ]


def _measures(report: RunReport) -> Table:
    rows = [(label, getattr(report, name)) for label, name in MEASURES]
    return _estimates("measures", "Measures", [row for row in rows if row[1].count or row[1].undefined])


def _stages(report: RunReport) -> Table:
    return _estimates("stages", "Duration of stages, ms", list(report.stages.items()))


def _estimates(name: str, title: str, rows: Sequence[tuple[str, Estimate]]) -> Table:
    columns = (
        text("measure", "measure"),
        Column("mean", "mean"),
        Column("low", "95 % from"),
        Column("high", "to"),
        Column("count", "asks"),
        Column("undefined", "undefined"),
    )
    entries: tuple[tuple[Cell, ...], ...] = tuple(
        (label, one.mean, one.low, one.high, one.count, one.undefined) for label, one in rows
    )
    return Table(name, title, columns, entries)


def _shares(name: str, title: str, what: str, shares: Sequence[ExposureShare]) -> Table:
    return Table(
        name,
        title,
        (
            text(what, what),
            Column("exposure", "exposure"),
            Column("share", "share"),
            Column("target", "target"),
        ),
        tuple((share.name or NOBODY, share.exposure, share.share, share.target) for share in shares),
    )


def _degradations(report: RunReport) -> Table:
    return Table(
        "degradations",
        "Stages that degraded",
        (text("stage", "stage"), text("reason", "reason"), Column("asks", "asks")),
        tuple((one.stage, one.reason, one.count) for one in report.degradations),
    )


def _share(share: ExposureShare) -> Share:
    ratio = share.exposure / share.target if share.target else float("nan")
    return Share(share.name or NOBODY, share.exposure, share.share, share.target, ratio)


def _curves(measurements: Iterable[Measurement]) -> Iterable[Curve]:
    """Yield a curve for each system that was asked at two α or more, targets aside."""
    systems: dict[str, list[Measurement]] = {}
    for one in measurements:
        made = one.configuration
        if made.target:
            continue
        name = " · ".join(part for part in (made.retriever, made.reranker, made.generator) if part)
        systems.setdefault(name, []).append(one)
    nothing = float("nan")
    for name, x, y in _CURVES:
        for system, mine in systems.items():
            if len({one.configuration.alpha for one in mine}) > 1:
                points = [
                    (
                        one.query_id,
                        one.configuration.alpha,
                        one.quantities.get(x, nothing),
                        one.quantities.get(y, nothing),
                    )
                    for one in mine
                ]
                found = curve(name, system, points, Bootstrap())
                if found is not None:
                    yield found
