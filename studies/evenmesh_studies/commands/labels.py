"""``evenmesh label``: label passages by their utility to a model."""

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from evenmesh.commands.ask import Target
from evenmesh.commands.failure import FAILED, CommandError
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands import study

if TYPE_CHECKING:
    from evenmesh_studies.labels import LabelPlan, LabelUnit
    from evenmesh_studies.runner import StudyRunner


def label(
    queries: study.Queries,
    out: study.Out,
    collection: study.Collection = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            "--retriever",
            "-r",
            help="Retriever whose pool is labelled; several pools are joined. [default: bm25]",
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, max=1000, help="Size of each pool.")] = 100,
    model: study.Models = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Scores answers: token_f1, exact_match, accuracy, rating, rouge1, rouge2, rougeL, LaMP-1 to "
            "LaMP-7."
        ),
    ] = "token_f1",
    augmentation: Annotated[
        str | None, typer.Option(help="How the model reads the passage: in_prompt, fusion_in_decoder.")
    ] = None,
    template: study.Template = None,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Answers per call.")] = 32,
    shard: study.ShardText = "0/1",
    in_flight: study.InFlight = 2,
    timeout: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds for one call.")] = 600.0,
    retry_for: study.RetryFor = 600.0,
    target: Target = None,
) -> None:
    """Label passages by their utility to a model.

    A passage is useful if the model's answer from it alone beats that from none (Kim & Diaz, algorithm 1).
    Write TREC qrels and Parquet for each model. The same command resumes a run that was stopped or killed.
    """
    from evenmesh_studies.commands.eval.outputs import reported

    screen = Screen()
    with reported():
        from evenmesh import Client
        from evenmesh.types import request
        from evenmesh_lab.files import read_queries
        from evenmesh_studies import labels
        from evenmesh_studies.runner import StudyRunner

        problems: list[str] = []
        part = study.shard_of(shard, problems)
        known = get_args(request.Augmentation)[:2]
        with Client(target) as client:
            plan = labels.LabelPlan(
                queries=read_queries(queries),
                models=study.models_of(model, client.addresses),
                retrievers=retriever or ["bm25"],
                collection=collection,
                depth=depth,
                metric=metric,
                augmentation=study.choice("--augmentation", augmentation, known, problems),
                batch=batch,
                timeout=timeout,
                template=template,
            )
            study.refuse_problems(screen, labels.check(plan, client, problems))
            addresses = client.addresses
        runner = StudyRunner(plan, out, part, in_flight, retry_for)
        study.run_study(screen, runner, lambda: labels.connected(plan, addresses), "queries × models")
        if not study.others_missing(screen, runner, "queries", "the last one writes the labels"):
            _write_labels(screen, plan, runner)


def _write_labels(screen: Screen, plan: "LabelPlan", runner: "StudyRunner[LabelUnit]") -> None:
    """Write the labels of each model and show what they say."""
    from evenmesh_lab.files import blank_ids, write_labels, write_qrels
    from evenmesh_lab.studies import gains as gains_study
    from evenmesh_studies import labels
    from evenmesh_studies.commands.eval.outputs import show
    from evenmesh_studies.runner import stem
    from evenmesh_studies.runner.shards import records_paths

    out = runner.folder
    files = {model: records_paths(out, labels.records_name(model), runner.shard) for model in plan.models}
    found = {model: labels.gains(plan, paths) for model, paths in files.items() if paths}
    if not found:
        raise CommandError("no query has passages: there is nothing to label", FAILED)
    for model, gains in found.items():
        parquet = out / f"{stem(model)}.labels.parquet"
        write_labels(gains, parquet)
        screen.note(f"wrote {parquet}")
        blank = blank_ids(gains)
        if blank:
            screen.note(f"note: {len(blank):,} ids have white space, such as {blank[0]!r}: no TREC qrels")
            continue
        qrels = out / f"{stem(model)}.qrels"
        write_qrels(gains, qrels)
        screen.note(f"wrote {qrels}")
    show(screen, [gains_study.table(found)])
