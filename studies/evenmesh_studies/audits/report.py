"""Measure the records of an audit and write the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenmesh_lab import figures
from evenmesh_lab.files import QueryAudit, read_audits
from evenmesh_lab.studies import Bootstrap, ExposureStudy, UtilityStudy, exposure, statement, utility
from evenmesh_lab.studies.tables import Table
from evenmesh_studies.audits.grid import grid
from evenmesh_studies.audits.plan import AuditPlan
from evenmesh_studies.runner import stem
from evenmesh_studies.runner.report import ReportSection, with_statement, write_report


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


def measure(plan: AuditPlan, files: Mapping[str, Sequence[Path]]) -> list[ModelAudit]:
    """Measure the records of each model, each against its own largest utilities.

    Args:
        plan: what was run.
        files: of each model.

    Raises:
        FileError: a file cannot be read.
    """
    settings = Bootstrap(level=plan.level)
    found = []
    for model, paths in files.items():
        k = plan.k or longest(paths)
        exposed = exposure.measure(
            _audits(plan, paths), plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings
        )
        useful = None
        if plan.answers:
            useful = utility.measure(
                _audits(plan, paths), plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings
            )
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


def _audits(plan: AuditPlan, files: Sequence[Path]) -> Iterable[QueryAudit]:
    """Read the queries in the plan's order, whatever shards wrote them."""
    if len(files) == 1:
        return read_audits(files)
    places = {query.query_id: place for place, query in enumerate(plan.queries.queries)}
    return sorted(read_audits(files), key=lambda one: places[one.query_id])


def write(
    audits: Sequence[ModelAudit], facts: Sequence[tuple[str, str]], folder: Path, *, stated: str = ""
) -> list[Path]:
    """Write the report of all models.

    Args:
        audits: of the models.
        facts: what the report is about: names and values.
        folder: where to; made if needed.
        stated: models, versions and seeds, for figures and table notes.

    Returns:
        The files, the page first.
    """
    sections: list[ReportSection] = []
    csv: dict[str, Sequence[Table]] = {}
    for one in audits:
        for name, study in one.studies:
            begin = f"{stem(one.model)}-{name}" if one.model else name
            title = f"{name.capitalize()}, {one.model}" if one.model else name.capitalize()
            tables = csv[f"{begin}.csv"] = study.tables()
            sections.append(
                ReportSection(
                    title,
                    with_statement(tables[:-1] or tables, statement(study), stated),
                    figures.of(study, stated=stated),
                    prefix=f"{begin}-",
                )
            )
    answered = [(one.model, one.utility) for one in audits if one.utility is not None]
    if len(answered) > 1:
        together = list(grid(answered))
        csv |= {f"models-{table.name}.csv": (table,) for table in together}
        sections.append(ReportSection("All models", together))
    return write_report(folder, "Audit", facts, sections, csv)
