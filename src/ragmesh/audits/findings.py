"""What an audit found, from its records: tables, figures and one page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raglab import figures, reports
from raglab.files import QueryAudit, read_audits
from raglab.reports.markdown import as_markdown
from raglab.studies import Bootstrap, ExposureStudy, UtilityStudy, exposure, statement, utility
from ragmesh.audits.grid import grid
from ragmesh.audits.plan import AuditPlan
from ragmesh.shards import stem


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
            _audits(plan, paths), plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings
        )
        useful = None
        if plan.answers:
            useful = utility.measure(
                _audits(plan, paths), plan.labels, k=k, min_grade=plan.min_grade, bootstrap=settings
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


def _audits(plan: AuditPlan, files: Sequence[Path]) -> Iterable[QueryAudit]:
    """The queries in the plan's order, which is the same however they were divided."""
    if len(files) == 1:
        return read_audits(files)
    places = {query.query_id: place for place, query in enumerate(plan.queries.queries)}
    return sorted(read_audits(files), key=lambda one: places[one.query_id])


def write(
    findings: Sequence[Finding], facts: Sequence[tuple[str, str]], folder: Path, *, stated: str = ""
) -> list[Path]:
    """Writes each model's tables as CSV and Markdown, its figures as SVG and PNG, and one page of everything.

    Args:
        findings: of the models.
        facts: what the page says it is about: names and values.
        stated: models, versions and seeds, for the strip below figures and the notes of tables.
        folder: where to; made if it is not there.

    Returns:
        The files, the page first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections, written = [], []
    lines = ["# Audit", "", *(f"- {name}: {value}" for name, value in facts), ""]
    for one in findings:
        for name, study in (("exposure", one.exposure), ("utility", one.utility)):
            if study is None:
                continue
            begin = f"{stem(one.model)}-{name}" if one.model else name
            drawn = figures.of(study, stated=stated)
            tables = study.tables()
            written.extend(reports.write_csv(tables, folder / f"{begin}.csv"))
            text = "; ".join(part for part in (statement(study), stated) if part)
            tables = tuple(replace(table, note=f"{table.note} {text}.".strip()) for table in tables)
            for figure_name, figure in drawn.items():
                for ending in ("svg", "png"):
                    target = folder / f"{begin}-{figure_name}.{ending}"
                    figures.save(figure, target)
                    written.append(target)
            title = f"{name.capitalize()}, {one.model}" if one.model else name.capitalize()
            sections.append(reports.Section(title, tables[:-1] or tables, drawn))
            lines += [f"## {title}", "", as_markdown(tables[:-1] or tables, level=3)]
            for figure_name in drawn:
                shown = reports.caption(figure_name)
                lines += [f"![{shown}]({begin}-{figure_name}.png)", "", shown, ""]
    answered = [(one.model, one.utility) for one in findings if one.utility is not None]
    if len(answered) > 1:
        together = tuple(grid(answered))
        for table in together:
            written.extend(reports.write_csv((table,), folder / f"models-{table.name}.csv"))
        sections.append(reports.Section("All models", together, {}))
        lines += ["## All models", "", as_markdown(together, level=3)]
    written.append(folder / "report.md")
    written[-1].write_text("\n".join(lines), encoding="utf-8")
    page = folder / "report.html"
    page.write_text(reports.page(reports.Report("Audit", facts, sections)), encoding="utf-8")
    return [page, *written]
