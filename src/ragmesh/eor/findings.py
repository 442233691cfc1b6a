"""What a study found, from its records: tables, figures, one page, and weights for a mesh's ensembles."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raglab import figures, reports
from raglab.files import Ensemble, FileError, read_ensemble
from raglab.reports.markdown import as_markdown
from raglab.studies import Bootstrap, EorStudy, eor, statement
from raglab.studies.tables import Table
from raglab.studies.vote import Voting
from ragmesh.eor.plan import EorPlan
from ragmesh.eor.pool import tells_context
from ragmesh.eor.stored import records_paths
from ragmesh.shards import WHOLE, Shard, stem


def measure(
    plan: EorPlan,
    folder: Path,
    voting: Voting,
    *,
    judge: str,
    longest_answer: int | None,
    level: float,
    shard: Shard = WHOLE,
) -> EorStudy:
    """Learns weights on the training questions that are written, and measures on the test questions.

    Args:
        plan: what was run.
        folder: where its records are.
        voting: how answers vote; weights are learned.
        judge: how answers are held against references.
        longest_answer: most words of answers whose kinds of errors are told apart; None for any.
        level: confidence level of intervals.
        shard: one of those that all were run as.

    Raises:
        FileError: a file is at fault, or nothing is written of a data set.
        InvalidInput: a split without answered questions.
    """
    members = plan.pool.members
    settings = []
    for dataset in plan.datasets:
        chosen = plan.chosen(dataset)
        training = [query.query_id for query in chosen if plan.is_training(query)]
        testing = [query.query_id for query in chosen if not plan.is_training(query)]
        for model in plan.models:
            paths = records_paths(folder, dataset.name, model, shard)
            if not paths:
                raise FileError(folder, None, f"has no answers of {model} to {dataset.name}")
            found = read_ensemble(paths, retrievers=members)
            settings.append(
                eor.Setting(
                    dataset=dataset.name,
                    model=model,
                    train=_part(found, training),
                    test=_part(found, testing),
                    unknown_contexts=tuple(one for one in members if not tells_context(one)),
                )
            )
    return eor.measure(
        settings, voting, judge=judge, longest_answer=longest_answer, bootstrap=Bootstrap(level=level)
    )


def write(
    study: EorStudy, voting: Voting, facts: Sequence[tuple[str, str]], stated: str, folder: Path
) -> list[Path]:
    """Writes tables as CSV and Markdown, figures as SVG and PNG, one page of everything, and the weights.

    Args:
        study: what was found.
        voting: how answers voted.
        facts: what the page says it is about: names and values.
        stated: models, versions and seeds, for the strip below figures and tables.
        folder: where to; made if it is not there.

    Returns:
        The files, the page first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = "; ".join((statement(study), stated))
    tables = study.tables()
    written = reports.write_csv(tables, folder / "eor.csv")
    said = [replace(table, note=f"{table.note} {text}.".strip()) for table in tables]
    drawn = figures.of(study, stated=stated)
    for name, figure in drawn.items():
        for ending in ("svg", "png"):
            written.append(folder / f"{name}.{ending}")
            figures.save(figure, written[-1])
    written.append(folder / "report.md")
    written[-1].write_text(_markdown(facts, said[:-1], drawn), encoding="utf-8")
    page = folder / "report.html"
    sections = [reports.Section("Findings", said[:-1], drawn), reports.Section("Details", said[-1:])]
    page.write_text(reports.page(reports.Report("Ensemble of retrievers", facts, sections)), encoding="utf-8")
    return [page, *written, *write_weights(study, voting, folder)]


def write_weights(study: EorStudy, voting: Voting, folder: Path) -> list[Path]:
    """Writes the weights of each data set and model, and ``ensembles.json``: what an orchestrator is to be
    set to (``RAGMESH_ORCHESTRATOR_ENSEMBLES``) for its ensembles to vote with them, the data set as the task.

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
    """Some of the questions in that order, which is the same however they were divided."""
    there = {one.query_id: one for one in found.questions}
    return replace(found, questions=tuple(there[one] for one in query_ids if one in there))


def _markdown(facts: Iterable[tuple[str, str]], tables: Sequence[Table], drawn: Mapping[str, object]) -> str:
    lines = ["# Ensemble of retrievers", ""]
    lines += [f"- {name}: {value}" for name, value in facts]
    lines += ["", as_markdown(tables)]
    for name in drawn:
        lines += [f"![{reports.caption(name)}]({name}.png)", "", reports.caption(name), ""]
    return "\n".join(lines)
