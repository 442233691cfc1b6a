"""``ragmesh label``: which passages are of use to a model, by what it answers from each alone."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ragmesh.cli.ask import Target
from ragmesh.cli.failure import FAILED, USAGE, CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from ragmesh.cli.counting import CountDisplay
    from ragmesh.labelling import LabelPlan


def label(
    queries: Annotated[
        Path, typer.Argument(help="Questions: JSON lines or Parquet of query_id, question, references.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where labels go.")],
    collection: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Where passages come from, unless queries bring theirs."),
    ] = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            "--retriever",
            "-r",
            help="Whose pool is labelled; several are labelled together.  [default: bm25]",
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, max=1000, help="Size of each pool.")] = 100,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="For whom. May be repeated.  [default: the mesh's own]"),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Of answers: token_f1, exact_match, accuracy, rouge1, rouge2, rougeL, LaMP-1 to LaMP-7."
        ),
    ] = "token_f1",
    augmentation: Annotated[
        str | None, typer.Option(help="How a passage is handed over: in_prompt, fusion_in_decoder.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Prompt by name, such as lamp-4. Default: the model's own.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Answers of one call.")] = 32,
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Queries at a time.")] = 2,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one call.")] = 600.0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds the mesh may be away or overloaded before this gives up.")
    ] = 600.0,
    target: Target = None,
) -> None:
    """Label passages by their utility to a model.

    Useful is what makes the model's answer better (fair-rag, algorithm 1).
    Writes TREC qrels and Parquet for each model. A run that was stopped or killed goes on where it was.
    """
    import asyncio

    from ragmesh.cli.eval.outputs import reported

    screen = Screen()
    with reported():
        from raglab.files import Journal, read_queries
        from ragmesh import labelling, request
        from ragmesh.aio import AsyncClient
        from ragmesh.cli.counting import CountDisplay
        from ragmesh.client import Client
        from ragmesh.generation import Generation
        from ragmesh.inventory import models

        known = get_args(request.Augmentation)[:2]
        if augmentation is not None and augmentation not in known:
            raise CommandError(f"--augmentation is {augmentation!r}; allowed: {', '.join(known)}", USAGE)
        chosen: Any = augmentation
        with Client(target) as client:
            plan = labelling.LabelPlan(
                queries=read_queries(queries),
                models=model or [models(client.addresses)[0].name],
                retrievers=retriever or ["bm25"],
                collection=collection,
                depth=depth,
                metric=metric,
                augmentation=chosen,
                batch=batch,
                timeout=timeout,
                template=template,
            )
            problems = labelling.problems(plan, client)
            addresses = client.addresses
        if problems:
            for problem in problems[:-1]:
                screen.fail(problem)
            raise CommandError(problems[-1], USAGE)
        with Journal(out / "label.journal", plan.settings()) as journal:
            total = len(list(plan.units()))
            display = CountDisplay(screen, "queries × models", total=total, done=len(journal.done))

            async def run() -> None:
                async with AsyncClient(addresses) as mesh, Generation(addresses) as generation:
                    await labelling.run(
                        mesh,
                        generation,
                        plan,
                        journal,
                        _gains_file,
                        _Watcher(screen, display),
                        in_flight=in_flight,
                        patience_s=patience,
                    )

            with display:
                asyncio.run(run())
        _deliver(screen, plan, out)


class _Watcher:
    """Tells the screen how a run goes."""

    def __init__(self, screen: Screen, display: "CountDisplay") -> None:
        self._screen = screen
        self._display = display

    def labelled(self, what: Any) -> None:
        self._display.advance()
        if what.unknown:
            unit = what.unit
            self._screen.note(
                f"note: query {unit.query.query_id!r} for {unit.model}: {what.unknown:,} of "
                f"{what.passages:,} passages could not be answered from; they have no label"
            )
        if not what.passages:
            self._screen.note(f"note: query {what.unit.query.query_id!r} has no passages")

    def waits(self, why: Any, pause_s: float) -> None:
        self._screen.note(f"the mesh: {why}; asking again in {pause_s:.1f} s", style="yellow")


def _deliver(screen: Screen, plan: "LabelPlan", out: Path) -> None:
    """Writes the labels of each model and shows what they say."""
    from raglab.files import blank_ids, read_gains, write_labels, write_qrels
    from raglab.studies import gains as study
    from ragmesh.cli.eval.outputs import show

    found = {
        model: read_gains(out / _gains_file(model))
        for model in plan.models
        if (out / _gains_file(model)).exists()
    }
    if not found:
        raise CommandError("no query has passages: there is nothing to label", FAILED)
    for model, gains in found.items():
        parquet = out / f"{_stem(model)}.labels.parquet"
        write_labels(gains, parquet)
        screen.note(f"wrote {parquet}")
        blank = blank_ids(gains)
        if blank:
            screen.note(f"note: {len(blank):,} ids have white space, such as {blank[0]!r}: no TREC qrels")
            continue
        qrels = out / f"{_stem(model)}.qrels"
        write_qrels(gains, qrels)
        screen.note(f"wrote {qrels}")
    show(screen, [study.table(found)])


def _gains_file(model: str) -> str:
    return f"{_stem(model)}.gains.jsonl"


def _stem(model: str) -> str:
    """A file's name that no model can turn into another folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", model).lstrip(".") or "model"
