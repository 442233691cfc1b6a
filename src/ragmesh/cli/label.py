"""``ragmesh label``: which passages are of use to a model, by what it answers from each alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from ragmesh.cli import long_runs
from ragmesh.cli.ask import Target
from ragmesh.cli.failure import FAILED, CommandError, refuse
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from ragmesh.labelling import LabelPlan
    from ragmesh.shards import Shard

_KIND: Final = "label"
"""Name of the journals."""


def label(
    queries: Annotated[
        Path, typer.Argument(help="Questions: JSON lines or Parquet of query_id, question, references.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where labels go.")],
    collection: long_runs.Collection = None,
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
    shard: long_runs.ShardText = "0/1",
    in_flight: long_runs.InFlight = 2,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one call.")] = 600.0,
    patience: long_runs.Patience = 600.0,
    target: Target = None,
) -> None:
    """Label passages by their utility to a model.

    Useful is what makes the model's answer better (fair-rag, algorithm 1).
    Writes TREC qrels and Parquet for each model. A run that was stopped or killed goes on where it was.
    """
    from ragmesh.cli.eval.outputs import reported

    screen = Screen()
    with reported():
        from raglab.files import Journal, read_queries
        from ragmesh import labelling, request
        from ragmesh.aio import AsyncClient
        from ragmesh.client import Client
        from ragmesh.generation import Generation
        from ragmesh.shards import journal_path

        problems: list[str] = []
        part = long_runs.shard_of(shard, problems)
        known = get_args(request.Augmentation)[:2]
        with Client(target) as client:
            plan = labelling.LabelPlan(
                queries=read_queries(queries),
                models=long_runs.models_of(model, client.addresses),
                retrievers=retriever or ["bm25"],
                collection=collection,
                depth=depth,
                metric=metric,
                augmentation=long_runs.choice("--augmentation", augmentation, known, problems),
                batch=batch,
                timeout=timeout,
                template=template,
            )
            refuse(screen, labelling.problems(plan, client, problems))
            addresses = client.addresses
        with Journal(journal_path(out, _KIND, part), plan.settings(part)) as journal:
            units = list(plan.units(part))

            async def run(watcher: long_runs.Watcher) -> None:
                async with AsyncClient(addresses) as mesh, Generation(addresses) as generation:
                    await labelling.run(
                        mesh,
                        generation,
                        plan,
                        journal,
                        units,
                        lambda model: _gains_file(model, part),
                        watcher,
                        in_flight=in_flight,
                        patience_s=patience,
                    )

            names = [unit.name for unit in units]
            long_runs.go_on(screen, "queries × models", names, journal, _notes, run)
        _deliver(screen, plan, out, part)


def _notes(what: Any) -> Iterator[str]:
    query_id = what.unit.query.query_id
    if what.unknown:
        yield (
            f"query {query_id!r} for {what.unit.model}: {what.unknown:,} of {what.passages:,} passages could "
            "not be answered from; they have no label"
        )
    if not what.passages:
        yield f"query {query_id!r} has no passages"


def _deliver(screen: Screen, plan: "LabelPlan", out: Path, shard: "Shard") -> None:
    """Writes the labels of each model and shows what they say, once all shards are there."""
    from raglab.files import blank_ids, write_labels, write_qrels
    from raglab.studies import gains as study
    from ragmesh import labelling
    from ragmesh.cli.eval.outputs import show
    from ragmesh.shards import read_stored, stem

    stored = read_stored(out, _KIND, shard, plan.settings)
    missing = sum(unit.name not in stored.done for unit in plan.units())
    if missing:
        screen.note(f"{missing:,} queries of other shards are missing; the last one writes the labels")
        return
    found = {}
    for model in plan.models:
        files = [path for one in shard.all if (path := out / _gains_file(model, one)).exists()]
        if files:
            found[model] = labelling.gains(plan, files)
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
    show(screen, [study.table(found)])


def _gains_file(model: str, shard: "Shard") -> str:
    from ragmesh.shards import stem

    return f"{stem(model)}.gains{shard.suffix}.jsonl"
