"""``evenmesh audit``: measure exposure and utility over many sampled rankings of many queries."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from evenmesh.commands.ask import Target
from evenmesh.commands.failure import FAILED, CommandError
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands import study
from evenmesh_studies.commands.eval.options import MinGrade

if TYPE_CHECKING:
    from evenmesh_lab.files.trained_texts import TrainedTexts
    from evenmesh_studies.audits.plan import AuditPlan, AuditUnit, RankingSystem
    from evenmesh_studies.runner import StudyRunner


def audit(
    queries: study.Queries,
    labels: Annotated[
        Path, typer.Option("--labels", "-l", metavar="FILE", help="Useful passages: TREC qrels, or records.")
    ],
    out: study.Out,
    collection: study.Collection = None,
    retriever: study.Retrievers = None,
    expression: Annotated[
        list[str] | None,
        typer.Option("--expression", "-e", help="Sources of the mesh, such as Wiki@RR@5. May be repeated."),
    ] = None,
    model: study.Models = None,
    reranker: Annotated[str, typer.Option(help="cross-encoder, rankrag, remote or none.")] = "none",
    stage: Annotated[
        str | None, typer.Option(help="Sample rankings from the scores of the retriever or of the reranker.")
    ] = None,
    alpha: Annotated[str, typer.Option(metavar="A,B,…", help="Fairness dials, each 0 to 100.")] = "1,2,4,8",
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, max=1000, help="Rankings of each.")] = 100,
    oracle: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1000,
            help="Rankings of an oracle, for the largest utility. Default: as many as --samples.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given. Default: 5.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool. Default: 100.")] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="How answers are scored: token_f1, exact_match, accuracy, rating, rouge1, rouge2, rouge_l."
        ),
    ] = "token_f1",
    template: study.Template = None,
    min_grade: MinGrade = 1.0,
    until_width: Annotated[
        float | None,
        typer.Option(
            metavar="W",
            help="Stop sampling a query's dial once the interval of its expected utility is at most this "
            "wide. The interval is valid at every stopping time.",
        ),
    ] = None,
    level: study.Level = 0.95,
    trained_on: study.TrainedOn = None,
    exposure_only: Annotated[
        bool, typer.Option("--exposure-only", help="Measure exposure only; generate nothing.")
    ] = False,
    shard: study.ShardText = "0/1",
    in_flight: study.InFlight = 2,
    timeout: study.Timeout = 600.0,
    retry_for: study.RetryFor = 600.0,
    run: study.Run = "",
    observe: study.Observe = True,
    target: Target = None,
) -> None:
    """Audit who is shown, and the cost of fairness.

    Sample rankings at several α, answer each with every model, and measure exposure and utility.
    The same command resumes a run that was stopped or killed.
    """
    from evenmesh_studies.commands.eval.outputs import reported

    screen = Screen()
    with reported():
        from evenmesh import Client
        from evenmesh.types import request
        from evenmesh_lab.files import read_labels, read_queries
        from evenmesh_studies.audits.checks import check
        from evenmesh_studies.audits.plan import AuditPlan
        from evenmesh_studies.audits.run import connected
        from evenmesh_studies.runner import StudyRunner
        from evenmesh_studies.runner.overlap import collection_texts, read_given

        problems: list[str] = []
        given = read_given(trained_on, problems)
        part = study.shard_of(shard, problems)
        with Client(target) as client:
            plan = AuditPlan(
                queries=read_queries(queries),
                labels=read_labels(labels),
                systems=_systems(retriever, expression, reranker),
                models=[""] if exposure_only else study.models_of(model, client.addresses),
                alphas=_alphas(alpha, problems),
                samples=samples,
                seed=seed,
                oracle=oracle,
                collection=collection,
                k=k,
                depth=depth,
                stage=study.choice("--stage", stage, get_args(request.SamplingStage), problems),
                metric=study.choice("--metric", metric, get_args(request.Metric), problems),
                min_grade=min_grade,
                until_width=until_width,
                level=level,
                answers=not exposure_only,
                run_id=run,
                observe=observe,
                timeout=timeout,
                template=template,
            )
            study.refuse_problems(screen, check(plan, client, problems))
            searched = collection_texts(client, plan.collection)
            addresses = client.addresses
        runner = StudyRunner(plan, out, part, in_flight, retry_for)
        study.run_study(screen, runner, lambda: connected(plan, addresses), "queries × systems × models")
        if not study.others_missing(screen, runner, "queries", "the last one makes the report"):
            _report(screen, plan, runner, given, searched)


def _report(
    screen: Screen,
    plan: "AuditPlan",
    runner: "StudyRunner[AuditUnit]",
    given: "Mapping[str, TrainedTexts]",
    searched: list[str] | None,
) -> None:
    """Measure the records of all shards, write the report and show its tables."""
    from evenmesh_lab.studies import Bootstrap
    from evenmesh_lab.studies.statements import intervals
    from evenmesh_studies.audits import report
    from evenmesh_studies.audits.plan import records_name
    from evenmesh_studies.commands.eval.outputs import show
    from evenmesh_studies.runner.overlap import overlap
    from evenmesh_studies.runner.report import journal_facts, program, provenance
    from evenmesh_studies.runner.shards import records_paths

    paths = {model: records_paths(runner.folder, records_name(model), runner.shard) for model in plan.models}
    files = {model: found for model, found in paths.items() if found}
    if not files:
        raise CommandError("no query has a ranking: there is nothing to report", FAILED)
    stored = runner.stored().facts
    own = [one.text for query in plan.queries.queries for one in query.passages]
    known = overlap(
        stored,
        {query.query_id: (query.question,) for query in plan.queries.queries},
        given=given,
        passages=own or searched,
    )
    audits = report.measure(plan, files)
    parts = [(name, report.measure(plan, files, only=mine)) for name, mine in known.parts]
    facts = [
        ("queries", f"{len(plan.queries.queries):,} of {plan.queries.path}"),
        ("systems", ", ".join(system.name for system in plan.systems)),
        ("rankings", f"up to {plan.samples:,} at each α, seed {plan.seed}"),
        ("intervals", intervals(Bootstrap(level=plan.level))),
        *journal_facts(stored),
    ]
    if plan.until_width is not None:
        facts.append(("sampling stops", f"at an interval of the expected utility {plan.until_width:g} wide"))
    facts.append(("program", program()))
    stated = "; ".join((*provenance(stored), f"rankings drawn with seed {plan.seed}", program()))
    page, *_ = report.write(
        audits, facts, runner.folder / "report", stated=stated, overlap=known, parts=parts
    )
    for name, some in (*parts, ("all", audits)):
        if parts:
            study.show_part(screen, name)
        for one in some:
            for _, found in one.studies:
                if len(audits) > 1:
                    screen.line(f"Model {one.model}", style="bold")
                show(screen, found.tables()[:-1] or found.tables())
                screen.line()
    screen.note(known.statement)
    screen.note(f"wrote {page}, and tables and figures beside it")


def _systems(
    retrievers: list[str] | None, expressions: list[str] | None, reranker: str
) -> "list[RankingSystem]":
    from evenmesh_studies.audits.plan import RankingSystem

    named = retrievers or ([] if expressions else ["bm25"])
    return [
        *(RankingSystem(retriever=name, reranker=reranker) for name in named),
        *(RankingSystem(expression=text, reranker=reranker) for text in expressions or ()),
    ]


def _alphas(text: str, problems: list[str]) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        problems.append(f"--alpha {text}: allowed: numbers with commas between")
        return [1.0]
