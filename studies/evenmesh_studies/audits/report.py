"""Measure the records of an audit and write the report."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenmesh_lab import figures
from evenmesh_lab.files import QueryAudit, read_audits
from evenmesh_lab.studies import Bootstrap, ExposureStudy, UtilityStudy, exposure, statement, utility
from evenmesh_lab.studies.overlap import Overlap
from evenmesh_lab.studies.tables import Table
from evenmesh_studies.audits.grid import grid
from evenmesh_studies.audits.plan import DEFAULT_METRIC, AuditPlan
from evenmesh_studies.runner import stem
from evenmesh_studies.runner.report import ReportSection, overlap_section, with_statement, write_report


@dataclass(frozen=True, slots=True)
class ModelAudit:
    """What the records of one model show; ``utility`` is None where nothing was answered."""

    model: str
    exposure: ExposureStudy
    utility: UtilityStudy | None

    @property
    def studies(self) -> list[tuple[str, ExposureStudy | UtilityStudy]]:
        """The studies by name."""
        found: list[tuple[str, ExposureStudy | UtilityStudy]] = [("exposure", self.exposure)]
        return found if self.utility is None else [*found, ("utility", self.utility)]


def measure(
    plan: AuditPlan, files: Mapping[str, Sequence[Path]], *, only: Collection[str] | None = None
) -> list[ModelAudit]:
    """Measure the records of each model, each against its own largest utilities.

    Args:
        plan: what was run.
        files: of each model.
        only: ids of the queries to measure; None for all. A model without a ranking of any is left out.

    Raises:
        FileError: a file cannot be read.
    """
    settings = Bootstrap(level=plan.level)
    found = []
    for model, paths in files.items():
        k = plan.k or longest(paths)
        mine = list(_audits(plan, paths, only))
        if not mine:
            continue
        exposed = exposure.measure(mine, plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings)
        useful = None
        if plan.answers:
            useful = utility.measure(mine, plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings)
            # Records have the utilities that the mesh gave, and not by which metric.
            useful = replace(useful, metric=plan.metric or DEFAULT_METRIC)
        found.append(ModelAudit(model, exposed, useful))
    return found


def longest(files: Sequence[Path]) -> int:
    """Return the length of the longest ranking: the number of passages a generator was given."""
    return max(
        len(ranking)
        for query in read_audits(files)
        for sampling in query.samplings
        for ranking in sampling.rankings[:1]
    )


def _audits(
    plan: AuditPlan, files: Sequence[Path], only: Collection[str] | None = None
) -> Iterable[QueryAudit]:
    """Read the queries in the plan's order, whatever shards wrote them."""
    found = (one for one in read_audits(files) if only is None or one.query_id in only)
    if len(files) == 1:
        return found
    places = {query.query_id: place for place, query in enumerate(plan.queries.queries)}
    return sorted(found, key=lambda one: places[one.query_id])


def write(
    audits: Sequence[ModelAudit],
    facts: Sequence[tuple[str, str]],
    folder: Path,
    *,
    stated: str = "",
    overlap: Overlap[str] | None = None,
    parts: Sequence[tuple[str, Sequence[ModelAudit]]] = (),
) -> list[Path]:
    """Write the report of all models.

    Args:
        audits: of the models.
        facts: what the report is about: names and values.
        folder: where to; made if needed.
        stated: models, versions and seeds, for figures and table notes.
        overlap: of the queries with the models' training; None leaves it out.
        parts: names and results of the queries to report apart, first of all.

    Returns:
        The files, the page first.
    """
    sections = [] if overlap is None else [overlap_section(overlap)]
    csv: dict[str, Sequence[Table]] = {} if overlap is None else {"overlap.csv": (overlap.table(),)}
    for name, mine in (*parts, ("", audits)):
        which = f"{name or 'all'} queries" if parts else ""
        found, tables = _sections(mine, f"{name}-" if name else "", which, stated)
        sections += found
        csv |= tables
    return write_report(folder, "Audit", facts, sections, csv)


def _sections(
    audits: Sequence[ModelAudit], prefix: str, which: str, stated: str
) -> tuple[list[ReportSection], dict[str, Sequence[Table]]]:
    """Return the sections and the tables of some queries; files begin with ``prefix``."""
    sections: list[ReportSection] = []
    csv: dict[str, Sequence[Table]] = {}
    said = "; ".join(one for one in (which, stated) if one)
    for one in audits:
        for name, study in one.studies:
            begin = f"{prefix}{stem(one.model)}-{name}" if one.model else f"{prefix}{name}"
            title = ", ".join(part for part in (name.capitalize(), one.model, which) if part)
            tables = csv[f"{begin}.csv"] = study.tables()
            sections.append(
                ReportSection(
                    title,
                    with_statement(tables[:-1] or tables, statement(study), said),
                    figures.of(study, stated=said),
                    prefix=f"{begin}-",
                )
            )
    answered = [(one.model, one.utility) for one in audits if one.utility is not None]
    if len(answered) > 1:
        together = list(grid(answered))
        csv |= {f"{prefix}models-{table.name}.csv": (table,) for table in together}
        sections.append(ReportSection(", ".join(part for part in ("All models", which) if part), together))
    return sections, csv
