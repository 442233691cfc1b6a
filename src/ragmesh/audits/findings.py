"""What an audit found, from its records: tables, figures and one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raglab import figures, reports
from raglab.files import read_audits
from raglab.studies import Bootstrap, ExposureStudy, UtilityStudy, exposure, utility
from ragmesh.audits.plan import AuditPlan


@dataclass(frozen=True, slots=True)
class Finding:
    """What the records of one model say; ``utility`` is None where nothing was answered."""

    model: str
    exposure: ExposureStudy
    utility: UtilityStudy | None


def measure(plan: AuditPlan, files: Mapping[str, Sequence[Path]]) -> list[Finding]:
    """Measures the records of each model, each with its own largest utilities.

    Args:
        plan: what was run.
        files: of each model.

    Raises:
        FileError: a file is at fault.
    """
    settings = Bootstrap(level=plan.level)
    found = []
    for model, paths in files.items():
        k = plan.k or longest(paths)
        exposed = exposure.measure(
            read_audits(paths), plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings
        )
        useful = None
        if plan.answers:
            useful = utility.measure(
                read_audits(paths), plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings
            )
        found.append(Finding(model, exposed, useful))
    return found


def longest(files: Sequence[Path]) -> int:
    """Passages in the longest ranking of some files: what a generator was given."""
    return max(
        len(ranking)
        for query in read_audits(files)
        for sampling in query.samplings
        for ranking in sampling.rankings[:1]
    )


def write(findings: Sequence[Finding], facts: Sequence[tuple[str, str]], folder: Path) -> list[Path]:
    """Writes each model's tables as CSV, its figures as SVG and PNG, and one page of everything.

    Args:
        findings: of the models.
        facts: what the page says it is about: names and values.
        folder: where to; made if it is not there.

    Returns:
        The files, the page first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections, written = [], []
    for one in findings:
        for name, study in (("exposure", one.exposure), ("utility", one.utility)):
            if study is None:
                continue
            stem = f"{one.model}-{name}" if one.model else name
            drawn = figures.of(study)
            tables = study.tables()
            written.extend(reports.write_csv(tables, folder / f"{stem}.csv"))
            for figure_name, figure in drawn.items():
                for ending in ("svg", "png"):
                    target = folder / f"{stem}-{figure_name}.{ending}"
                    figures.save(figure, target)
                    written.append(target)
            title = f"{name.capitalize()}, {one.model}" if one.model else name.capitalize()
            sections.append(reports.Section(title, tables[:-1] or tables, drawn))
    page = folder / "report.html"
    page.write_text(reports.page(reports.Report("Audit", facts, sections)), encoding="utf-8")
    return [page, *written]
