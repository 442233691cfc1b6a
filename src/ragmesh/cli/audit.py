"""``ragmesh audit``: many rankings of many queries, what they led to, and what fairness costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from ragmesh.cli import long_runs
from ragmesh.cli.ask import Target
from ragmesh.cli.failure import FAILED, CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from raglab.files import Journal
    from ragmesh.addresses import Addresses
    from ragmesh.audits.plan import AuditPlan
    from ragmesh.shards import Shard

_KIND: Final = "audit"
"""Name of an audit's journals."""


def audit(
    queries: Annotated[
        Path, typer.Argument(help="Questions: JSON lines or Parquet of query_id, question, references.")
    ],
    labels: Annotated[
        Path, typer.Option("--labels", "-l", metavar="FILE", help="Useful passages: TREC qrels, or records.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where records and the report go.")
    ],
    collection: long_runs.Collection = None,
    retriever: long_runs.Retrievers = None,
    expression: Annotated[
        list[str] | None,
        typer.Option("--expression", "-e", help="Sources of the mesh, such as Wiki@RR@5. May be repeated."),
    ] = None,
    model: long_runs.Models = None,
    reranker: Annotated[str, typer.Option(help="cross-encoder, rankrag or none.")] = "none",
    stage: Annotated[
        str | None, typer.Option(help="Over whose scores rankings are sampled: retriever or reranker.")
    ] = None,
    alpha: Annotated[str, typer.Option(metavar="A,B,…", help="Fairness dials, each 0 to 100.")] = "1,2,4,8",
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, max=1000, help="Rankings of each.")] = 100,
    oracle: Annotated[
        int | None,
        typer.Option(
            min=0, max=1000, help="Rankings of an oracle, for the largest utility. Default: as many."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given. Default: 5.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool. Default: 100.")] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="How answers are scored: token_f1, exact_match, accuracy, rouge1, rouge2, rouge_l."
        ),
    ] = "token_f1",
    template: Annotated[
        str | None, typer.Option(help="Prompt by name, such as lamp-4. Default: the model's own.")
    ] = None,
    min_grade: Annotated[float, typer.Option(help="Grade from which a passage is useful.")] = 1.0,
    until_width: Annotated[
        float | None,
        typer.Option(
            metavar="W",
            help="Stop sampling a query's dial once the interval of its expected utility is at most this "
            "wide; it may be looked at after every sample and still holds.",
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of intervals.")] = 0.95,
    exposure_only: Annotated[
        bool, typer.Option("--exposure-only", help="Measure who is shown; generate nothing.")
    ] = False,
    shard: long_runs.ShardText = "0/1",
    in_flight: long_runs.InFlight = 2,
    timeout: long_runs.Timeout = 600.0,
    patience: long_runs.Patience = 600.0,
    run: Annotated[str, typer.Option(help="Run to file observations under. Default: one of its own.")] = "",
    observe: Annotated[bool, typer.Option("--observe/--no-observe", help="Tell the evaluator.")] = True,
    target: Target = None,
) -> None:
    """Audit who is shown, and what fairness costs.

    Rankings are sampled at several α, answered by each model, and measured.
    A run that was stopped or killed goes on where it was with the same command.
    """
    from ragmesh.audits.plan import AuditPlan, System
    from ragmesh.cli.eval.outputs import reported

    screen = Screen()
    with reported():
        from raglab.files import Journal, read_labels, read_queries
        from ragmesh import request
        from ragmesh.audits.checks import check
        from ragmesh.client import Client
        from ragmesh.shards import journal_path

        problems: list[str] = []
        part = long_runs.shard_of(shard, problems)
        with Client(target) as client:
            plan = AuditPlan(
                queries=read_queries(queries),
                labels=read_labels(labels),
                systems=_systems(retriever, expression, reranker, System),
                models=[""] if exposure_only else long_runs.models_of(model, client.addresses),
                alphas=_alphas(alpha, problems),
                samples=samples,
                seed=seed,
                oracle=oracle,
                collection=collection,
                k=k,
                depth=depth,
                stage=long_runs.choice("--stage", stage, get_args(request.SamplingStage), problems),
                metric=long_runs.choice("--metric", metric, get_args(request.Metric), problems),
                min_grade=min_grade,
                until_width=until_width,
                level=level,
                answers=not exposure_only,
                run_id=run,
                observe=observe,
                timeout=timeout,
                template=template,
            )
            long_runs.tell(screen, check(plan, client, problems))
            addresses = client.addresses
        with Journal(journal_path(out, _KIND, part), plan.settings(part)) as journal:
            _run(screen, plan, journal, part, addresses, in_flight, patience)
        _report(screen, plan, out, part)


def _run(
    screen: Screen,
    plan: "AuditPlan",
    journal: "Journal",
    shard: "Shard",
    addresses: "Addresses",
    in_flight: int,
    patience: float,
) -> None:
    from ragmesh.aio import AsyncClient
    from ragmesh.audits import driver

    cells = list(plan.cells(shard))

    async def run(watcher: long_runs.Watcher) -> None:
        async with AsyncClient(addresses) as client:
            await driver.run(
                client,
                plan,
                journal,
                cells,
                lambda model: _file(model, shard),
                watcher,
                in_flight=in_flight,
                patience_s=patience,
            )

    names = [cell.name for cell in cells]
    long_runs.go_on(screen, "queries × systems × models", names, journal, _notes, run)


def _notes(what: Any) -> Iterator[str]:
    cell = what.cell
    if what.unanswered:
        yield (
            f"query {cell.query.query_id!r} with {cell.system.name} and {cell.model}: "
            f"{what.unanswered:,} of {what.rankings:,} rankings could not be answered"
        )
    if not what.rankings:
        yield f"query {cell.query.query_id!r} has no ranking"


def _report(screen: Screen, plan: "AuditPlan", out: Path, shard: "Shard") -> None:
    """Measures all shards, once all of them are there."""
    from importlib.metadata import version

    from ragmesh.audits import findings
    from ragmesh.cli.eval.outputs import show
    from ragmesh.shards import read_stored

    stored = read_stored(out, _KIND, shard, plan.settings)
    missing = sum(cell.name not in stored.done for cell in plan.cells())
    if missing:
        screen.note(f"{missing:,} queries of other shards are missing; the last one makes the report")
        return
    files = {
        model: [path for one in shard.all if (path := out / _file(model, one)).exists()]
        for model in plan.models
    }
    files = {model: paths for model, paths in files.items() if paths}
    if not files:
        raise CommandError("no query has a ranking: there is nothing to report", FAILED)
    found = findings.measure(plan, files)
    facts = stored.facts
    told = [
        ("queries", f"{len(plan.queries.queries):,} of {plan.queries.path}"),
        ("systems", ", ".join(system.name for system in plan.systems)),
        ("rankings", f"up to {plan.samples:,} at each α, seed {plan.seed}"),
        ("intervals", f"{plan.level:.0%}, BCa bootstrap over queries, 2,000 resamples, seed 0"),
        *((name, value or "–") for name, value in sorted(facts.items())),
    ]
    if plan.until_width is not None:
        told.append(("sampling stops", f"at an interval of the expected utility {plan.until_width:g} wide"))
    program = f"ragmesh {version('ragmesh')}"
    told.append(("program", program))
    made = [
        f"{name.removeprefix('version of ')} {value}" for name, value in facts.items() if "version of" in name
    ]
    rerankers = dict.fromkeys(
        value
        for name, value in facts.items()
        if name.startswith("reranker of ") and value not in ("", "none")
    )
    stated = "; ".join((*made, *rerankers, f"rankings drawn with seed {plan.seed}", program))
    written = findings.write(found, told, out / "report", stated=stated)
    for one in found:
        for study in (one.exposure, one.utility):
            if study is not None:
                if len(found) > 1:
                    screen.line(f"Model {one.model}", style="bold")
                show(screen, study.tables()[:-1] or study.tables())
                screen.line()
    screen.note(f"wrote {written[0]}, and tables and figures beside it")


def _file(model: str, shard: "Shard") -> str:
    """The file of a model's records, whose name no model can turn into another folder."""
    from ragmesh.shards import stem

    return f"{stem(model) if model else 'rankings'}{shard.suffix}.jsonl"


def _systems(retrievers: list[str] | None, expressions: list[str] | None, reranker: str, system: Any) -> Any:
    named = retrievers or ([] if expressions else ["bm25"])
    return [
        *(system(retriever=name, reranker=reranker) for name in named),
        *(system(expression=text, reranker=reranker) for text in expressions or ()),
    ]


def _alphas(text: str, problems: list[str]) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        problems.append(f"--alpha {text}: allowed: numbers with commas between")
        return [1.0]
