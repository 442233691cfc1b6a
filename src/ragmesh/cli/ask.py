"""``ragmesh ask``: one question, the answer as it is written."""

from typing import Annotated, Any

import typer

from ragmesh.cli.filters import FILTER_HELP, filter_of
from ragmesh.cli.screen import Screen

Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="HOST:PORT", help="Orchestrator to ask. Default: the mesh of this machine."
    ),
]


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to ask. Default: the mesh's own.")
    ] = None,
    expression: Annotated[
        str | None,
        typer.Option(
            "--expression", "-e", help="Sources of the mesh, such as SE@RR@5&Wiki@5; instead of a collection."
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        typer.Option(
            "--ensemble",
            metavar="NAME|A,B,…",
            help="Let the answers of an ensemble vote: one of the mesh by name, or expressions with commas.",
        ),
    ] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help=FILTER_HELP)] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Fairness dial: 0 is uniform, larger follows the scores. Samples rankings."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", min=1, max=1000, help="Rankings to sample.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    stage: Annotated[
        str | None, typer.Option(help="Over whose scores rankings are sampled: retriever or reranker.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool.")] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever by name, such as bm25.")] = None,
    reranker: Annotated[str | None, typer.Option(help="cross-encoder, rankrag or none.")] = None,
    model: Annotated[str | None, typer.Option(help="The generator's model by name.")] = None,
    answers: Annotated[
        int | None, typer.Option(min=0, help="Sampled rankings to answer, from the first. Default: all.")
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="A right answer, for the utility. May be repeated.")
    ] = None,
    useful: Annotated[
        list[str] | None, typer.Option(help="Id of a useful passage, for EE-R. May be repeated.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task of the agent asking, such as qa; an ensemble has its weights.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Run to file it under. Default: one per day.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for all of it.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, a line each.")] = False,
    target: Target = None,
) -> None:
    """Ask a question; see the answer as it is written.

    Then: the passages it cites, and which providers were shown to the model.
    """
    from ragmesh.client import Client
    from ragmesh.request import Agent

    screen = Screen()
    options: Any = {
        "collection": collection,
        "expression": expression,
        "ensemble": _ensemble(ensemble),
        "agent": None if task is None else Agent(task_id=task),
        "filter": filter_of(filter_ or []),
        "alpha": alpha,
        "samples": samples,
        "seed": seed,
        "sampling_stage": stage,
        "k": k,
        "depth": depth,
        "retriever": retriever,
        "reranker": reranker,
        "model": model,
        "num_answers": answers,
        "references": reference or None,
        "useful": useful or None,
        "run_id": run,
    }
    with Client(target) as mesh:
        events = mesh.ask(question, timeout=timeout, **options)
        if as_json:
            for event in events:
                screen.json({"event": type(event).__name__.lower(), **_fields(event)})
            return
        from ragmesh.cli.views import AskView

        with AskView(screen, samples=samples, alpha=alpha) as view:
            for event in events:
                view.show(event)
            result = view.finish(question)
    if not result.answers and answers != 0:
        raise typer.Exit(1)


def _ensemble(given: str | None) -> str | list[str] | None:
    """A name, or expressions: no name of an ensemble has a comma."""
    if given is None or "," not in given:
        return given
    return [part.strip() for part in given.split(",")]


def _fields(event: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {field.name: getattr(event, field.name) for field in fields(event)}
