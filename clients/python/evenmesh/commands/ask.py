"""``evenmesh ask``: one question, the answer as it is written."""

from typing import Annotated, Any

import typer

from evenmesh.commands.answering import Answering
from evenmesh.commands.dial import Alpha, Disparity, RelevanceLoss, Samples, Share
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh.commands.shares import shares_of

Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="HOST:PORT", help="Orchestrator to ask. Default: the mesh of this machine."
    ),
]


@with_groups
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    answering: Answering,
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
    alpha: Alpha = None,
    disparity: Disparity = None,
    relevance_loss: RelevanceLoss = None,
    share: Share = None,
    balance: Annotated[
        float | None,
        typer.Option(
            metavar="STRENGTH",
            help="Fairness over time: change of a score for each context that its provider is owed, such as "
            "0.05. Samples rankings.",
        ),
    ] = None,
    samples: Samples = None,
    stage: Annotated[
        str | None, typer.Option(help="Sample rankings from the scores of the retriever or of the reranker.")
    ] = None,
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
    agent_model: Annotated[
        str | None,
        typer.Option(help="Model of the agent asking: with its task, ranked as its feedback taught."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Seconds for the whole command.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, a line each.")] = False,
    target: Target = None,
) -> None:
    """Ask a question and show the answer as it is written.

    Then: the passages it cites, and which providers were shown to the model.
    """
    from evenmesh import Client
    from evenmesh.types.policy import Balance
    from evenmesh.types.request import Agent

    screen = Screen()
    options: Any = {
        **answering.options(),
        "expression": expression,
        "ensemble": _ensemble(ensemble),
        "agent": Agent(task or "", agent_model or "") if task or agent_model else None,
        "alpha": alpha,
        "disparity": disparity,
        "relevance_loss": relevance_loss,
        "shares": shares_of(share),
        "balance": None if balance is None else Balance(strength=balance),
        "samples": samples,
        "sampling_stage": stage,
        "num_answers": answers,
        "references": reference or None,
        "useful": useful or None,
    }
    with Client(target) as mesh:
        events = mesh.ask(question, timeout=timeout, **options)
        if as_json:
            for event in events:
                screen.event(event)
            return
        from evenmesh.commands.views import AskView

        with AskView(screen, samples=samples, alpha=alpha) as view:
            for event in events:
                view.show(event)
            result = view.finish(question)
    if not result.answers and answers != 0:
        raise typer.Exit(1)


def _ensemble(given: str | None) -> str | list[str] | None:
    """Return a name, or the expressions where there is a comma, which no name has."""
    if given is None or "," not in given:
        return given
    return [part.strip() for part in given.split(",")]
