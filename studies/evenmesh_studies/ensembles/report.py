"""Measure the records of a study, and write the report and the weights for a mesh's ensembles."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from evenmesh_lab import figures, reports
from evenmesh_lab.files import Ensemble, FileError, read_ensemble
from evenmesh_lab.studies import Bootstrap, EorStudy, eor, statement
from evenmesh_lab.studies.correctness import Judging
from evenmesh_lab.studies.overlap import Overlap
from evenmesh_lab.studies.tables import Table
from evenmesh_lab.studies.vote import Voting
from evenmesh_studies.ensembles.plan import EnsemblePlan, records_name
from evenmesh_studies.ensembles.pool import reports_context
from evenmesh_studies.runner import WHOLE, Shard, stem
from evenmesh_studies.runner.report import ReportSection, overlap_section, with_statement, write_report
from evenmesh_studies.runner.shards import records_paths

Key = tuple[str, str]
"""A question: its data set and its id."""


def measure(
    plan: EnsemblePlan,
    folder: Path,
    voting: Voting,
    *,
    judge: Judging,
    longest_answer: int | None,
    level: float,
    shard: Shard = WHOLE,
    only: Collection[Key] | None = None,
) -> EorStudy:
    """Learn weights on the written training questions, and measure on the test questions.

    Args:
        plan: what was run.
        folder: of its records.
        voting: how answers vote.
        judge: how answers are compared with references.
        longest_answer: most words of an answer whose kind of error is classified; None for any.
        level: confidence level of intervals.
        shard: any of the run's shards.
        only: test questions to measure; None for all. Weights are learned on all training questions, and a
            data set and model without one of these test questions is left out.

    Raises:
        FileError: a file cannot be read, or a data set has no records.
        InvalidInput: a split has no answered question.
    """
    members = plan.pool.members
    settings = []
    for dataset in plan.datasets:
        chosen = plan.chosen(dataset)
        training = [query.query_id for query in chosen if plan.is_training(query)]
        testing = [
            query.query_id
            for query in chosen
            if not plan.is_training(query) and (only is None or (dataset.name, query.query_id) in only)
        ]
        for model in plan.models:
            paths = records_paths(folder, records_name(dataset.name, model), shard)
            if not paths:
                raise FileError(folder, None, f"has no answers of {model} to {dataset.name}")
            found = read_ensemble(paths, retrievers=members)
            if only is not None and not _part(found, testing).questions:
                continue
            settings.append(
                eor.Setting(
                    dataset=dataset.name,
                    model=model,
                    train=_part(found, training),
                    test=_part(found, testing),
                    unknown_contexts=tuple(one for one in members if not reports_context(one)),
                )
            )
    return eor.measure(
        settings, voting, judge=judge, longest_answer=longest_answer, bootstrap=Bootstrap(level=level)
    )


def contexts(plan: EnsemblePlan, folder: Path, shard: Shard = WHOLE) -> list[str]:
    """Return the passages that readers were given, as far as the records of a run have them.

    Raises:
        FileError: a file cannot be read.
    """
    return [
        answer.context
        for dataset in plan.datasets
        for model in plan.models
        if (paths := records_paths(folder, records_name(dataset.name, model), shard))
        for question in read_ensemble(paths, retrievers=plan.pool.members).questions
        for answer in question.answers
        if answer.context
    ]


def write(
    study: EorStudy,
    voting: Voting,
    facts: Sequence[tuple[str, str]],
    stated: str,
    folder: Path,
    *,
    overlap: Overlap[Key] | None = None,
    parts: Sequence[tuple[str, EorStudy]] = (),
) -> list[Path]:
    """Write the report and the weights.

    Args:
        study: what was found.
        voting: how answers voted.
        facts: what the report is about: names and values.
        stated: models, versions and seeds, for figures and table notes.
        folder: where to; made if needed.
        overlap: of the test questions with the models' training; None leaves it out.
        parts: names and results of the test questions to report apart, first of all.

    Returns:
        The files, the page first.
    """
    sections = [] if overlap is None else [overlap_section(overlap)]
    csv: dict[str, tuple[Table, ...]] = {} if overlap is None else {"overlap.csv": (overlap.table(),)}
    for name, one in (*parts, ("", study)):
        which = f"{name or 'all'} test questions" if parts else ""
        said = "; ".join(part for part in (which, stated) if part)
        tables = csv[f"eor-{name}.csv" if name else "eor.csv"] = one.tables()
        *shown, details = with_statement(tables, statement(one), said)
        sections.append(
            ReportSection(
                f"Findings, {which}" if which else "Findings",
                shown,
                figures.of(one, stated=said),
                details=[details],
                prefix=f"{name}-" if name else "",
            )
        )
    written = write_report(folder, "Ensemble of retrievers", facts, sections, csv)
    return [*written, *write_weights(study, voting, folder)]


def write_weights(study: EorStudy, voting: Voting, folder: Path) -> list[Path]:
    """Write the weights of each data set and model, and ``ensembles.json``.

    An orchestrator with ``EVENMESH_ORCHESTRATOR_ENSEMBLES`` set to the latter votes with these weights; the
    data set is the task.

    Returns:
        The files.
    """
    written = []
    ensembles: dict[str, dict[str, object]] = {}
    models = list(dict.fromkeys(one.model for one in study.settings))
    for one in study.settings:
        path = folder / f"weights-{stem(one.dataset)}.{stem(one.model)}.json"
        path.write_text(reports.as_json(one.vote) + "\n", encoding="utf-8")
        written.append(path)
        name = "eor" if len(models) == 1 else f"eor-{one.model}"
        ensemble = ensembles.setdefault(
            name,
            {
                "members": list(one.vote.retrievers),
                "pooling": voting.pooling,
                "threshold": voting.threshold,
                "retriever_filter": voting.retriever_filter,
                "drop_filtered": voting.drop_filtered,
                "weights": {},
            },
        )
        weights = ensemble["weights"]
        if isinstance(weights, dict):
            weights[one.dataset] = str(path.resolve())
    settings = folder / "ensembles.json"
    settings.write_text(json.dumps(ensembles, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*written, settings]


def _part(found: Ensemble, query_ids: Sequence[str]) -> Ensemble:
    """Return some of the questions in the given order, whatever shards wrote them."""
    there = {one.query_id: one for one in found.questions}
    return replace(found, questions=tuple(there[one] for one in query_ids if one in there))
