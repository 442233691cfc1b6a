"""``ragmesh audit``: many rankings of many queries, what they led to, and what fairness costs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ragmesh.cli.ask import Target
from ragmesh.cli.failure import FAILED, USAGE, CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from raglab.files import Journal
    from ragmesh.audits.plan import AuditPlan
    from ragmesh.cli.counting import CountDisplay


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
    collection: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Where passages come from, unless queries bring theirs."),
    ] = None,
    retriever: Annotated[
        list[str] | None, typer.Option("--retriever", "-r", help="By name. May be repeated.  [default: bm25]")
    ] = None,
    expression: Annotated[
        list[str] | None,
        typer.Option("--expression", "-e", help="Sources of the mesh, such as Wiki@RR@5. May be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Generator's model. May be repeated.  [default: the mesh's own]"),
    ] = None,
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
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Every N-th query from the I-th, counted from 0.")
    ] = "0/1",
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Queries asked at a time.")] = 2,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one query.")] = 600.0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds the mesh may be away or overloaded before this gives up.")
    ] = 600.0,
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

    place, count = _shard(shard)
    screen = Screen()
    with reported():
        from raglab.files import read_labels, read_queries
        from ragmesh.audits.checks import check
        from ragmesh.client import Client
        from ragmesh.inventory import models

        with Client(target) as client:
            plan = AuditPlan(
                queries=read_queries(queries),
                labels=read_labels(labels),
                systems=_systems(retriever, expression, reranker, System),
                models=[""] if exposure_only else model or [models(client.addresses)[0].name],
                alphas=_alphas(alpha),
                samples=samples,
                seed=seed,
                oracle=oracle,
                collection=collection,
                k=k,
                depth=depth,
                stage=_choice("--stage", stage, _literal("SamplingStage")),
                metric=_choice("--metric", metric, _literal("Metric")),
                min_grade=min_grade,
                until_width=until_width,
                level=level,
                answers=not exposure_only,
                run_id=run,
                observe=observe,
                timeout=timeout,
                template=template,
            )
            findings = check(plan, client)
            for note in findings.notes:
                screen.note(f"note: {note}")
            if findings.problems:
                for problem in findings.problems[:-1]:
                    screen.fail(problem)
                raise CommandError(findings.problems[-1], USAGE)
            addresses = client.addresses
        journal_path = out / f"audit{_suffix(place, count)}.journal"
        with _journal(journal_path, plan, place, count) as journal:
            _run(screen, plan, journal, place, count, addresses, in_flight, patience)
            facts = dict(journal.facts)
        _report(screen, plan, out, count, facts)


def _run(
    screen: Screen,
    plan: "AuditPlan",
    journal: "Journal",
    place: int,
    count: int,
    addresses: Any,
    in_flight: int,
    patience: float,
) -> None:
    import asyncio

    from ragmesh.aio import AsyncClient
    from ragmesh.audits import driver
    from ragmesh.cli.counting import CountDisplay

    cells = list(plan.cells(place, count))
    display = CountDisplay(screen, "queries × systems × models", total=len(cells), done=len(journal.done))

    async def run() -> None:
        async with AsyncClient(addresses) as client:
            await driver.run(
                client,
                plan,
                journal,
                cells,
                lambda model: _file(model, place, count),
                _Watcher(screen, display),
                in_flight=in_flight,
                patience_s=patience,
            )

    with display:
        asyncio.run(run())


class _Watcher:
    """Tells the screen how a run goes."""

    def __init__(self, screen: Screen, display: "CountDisplay") -> None:
        self._screen = screen
        self._display = display

    def written(self, what: Any) -> None:
        self._display.advance()
        if what.unanswered:
            cell = what.cell
            self._screen.note(
                f"note: query {cell.query.query_id!r} with {cell.system.name} and {cell.model}: "
                f"{what.unanswered:,} of {what.rankings:,} rankings could not be answered"
            )
        if not what.rankings:
            self._screen.note(f"note: query {what.cell.query.query_id!r} has no ranking")

    def waits(self, why: Any, pause_s: float) -> None:
        self._screen.note(f"the mesh: {why}; asking again in {pause_s:.1f} s", style="yellow")


def _report(screen: Screen, plan: "AuditPlan", out: Path, count: int, facts: dict[str, str]) -> None:
    """Measures all shards, once all of them are there."""
    import json
    from importlib.metadata import version

    from ragmesh.audits import findings
    from ragmesh.cli.eval.outputs import show

    missing = 0
    for place in range(count):
        path = out / f"audit{_suffix(place, count)}.journal"
        lines = path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []
        for line in lines:
            for name, value in json.loads(line).get("facts", {}).items():
                if facts.setdefault(name, value) != value:
                    raise CommandError(
                        f"{path}: {name} is {value!r}, in another shard {facts[name]!r}", FAILED
                    )
        missing += len(list(plan.cells(place, count))) - len(lines)
    if missing:
        screen.note(f"{missing:,} queries of other shards are missing; the last one makes the report")
        return
    files = {
        model: [path for place in range(count) if (path := out / _file(model, place, count)).exists()]
        for model in plan.models
    }
    files = {model: paths for model, paths in files.items() if paths}
    if not files:
        raise CommandError("no query has a ranking: there is nothing to report", FAILED)
    found = findings.measure(plan, files)
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


@contextmanager
def _journal(path: Path, plan: "AuditPlan", place: int, count: int) -> "Iterator[Journal]":
    from raglab.files import Journal

    with Journal(path, plan.settings(place, count)) as journal:
        yield journal


def _file(model: str, place: int, count: int) -> str:
    """The file of a model's records, whose name no model can turn into another folder."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", model).lstrip(".") or "rankings"
    return f"{stem}{_suffix(place, count)}.jsonl"


def _suffix(place: int, count: int) -> str:
    return "" if count == 1 else f"-{place}-of-{count}"


def _systems(retrievers: list[str] | None, expressions: list[str] | None, reranker: str, system: Any) -> Any:
    named = retrievers or ([] if expressions else ["bm25"])
    return [
        *(system(retriever=name, reranker=reranker) for name in named),
        *(system(expression=text, reranker=reranker) for text in expressions or ()),
    ]


def _alphas(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as exc:
        raise CommandError(f"--alpha is {text!r}; allowed: numbers with commas between", USAGE) from exc


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found and int(found[1]) < int(found[2]):
        return int(found[1]), int(found[2])
    raise CommandError(f"--shard is {text!r}; allowed: I/N with I from 0 and below N", USAGE)


def _literal(name: str) -> tuple[str, ...]:
    from ragmesh import request

    return get_args(getattr(request, name))


def _choice(option: str, value: str | None, allowed: tuple[str, ...]) -> Any:
    if value is not None and value not in allowed:
        raise CommandError(f"{option} is {value!r}; allowed: {', '.join(allowed)}", USAGE)
    return value
