"""``evenmesh train agent``: fine-tune a model as an agent that a search engine can learn from."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh_training.agents.options import AgentOptions
from evenmesh_training.commands.requirements import with_training


@with_groups
def agent(
    *,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to learn, as in the data: qa-open, or a kind of task: slot_filling. Repeatable.",
        ),
    ] = None,
    given: AgentOptions,
    output: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints, logs and the model; empty or new.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fine-tune a model as an agent: one task or several, from the passages that BM25 finds.

    Defaults are those of the paper (Salemi & Zamani, section 5.1). On a laptop: --epochs 1 --limit 500 -k 4.
    """
    with_training()
    from evenmesh_training.agents import session
    from evenmesh_training.rankrag.data.datasets import default_data
    from evenmesh_training.rankrag.recipe import RecipeError

    if output is None:
        raise CommandError("--output is missing: name a folder for the checkpoints and the model", USAGE)
    screen = Screen()
    try:
        run = session.prepare(
            session.Options(tasks=tuple(task or ()), output=output, root=default_data(), **asdict(given))
        )
    except RecipeError as error:
        raise CommandError(str(error)) from None
    if run.trainer.is_main and not as_json:
        screen.note(
            f"{run.examples:,} inputs, {run.stage.steps:,} steps of {run.stage.batch_size}"
            + (f"; {run.nothing_found:,} left out: no passage shares a word" if run.nothing_found else "")
            + (f"; {run.too_long:,} left out: longer than the model reads" if run.too_long else "")
        )
    done = run.run()
    if not run.trainer.is_main:
        return
    said = {name: done.measures.get(f"five_{name}", float("nan")) for name in ("em", "f1")}
    if as_json:
        screen.json(
            {
                "step": done.step,
                "complete": done.complete,
                "inputs": run.examples,
                "nothing_found": run.nothing_found,
                "too_long": run.too_long,
                "split": run.split,
                "held_out": run.held_out,
                "exact_match": None if said["em"] != said["em"] else said["em"],
                "token_f1": None if said["f1"] != said["f1"] else said["f1"],
            }
        )
        return
    if not done.complete:
        screen.line(f"stopped after {done.step:,} steps; go on with the same command and --resume")
        return
    if run.held_out:
        screen.line(
            f"{run.held_out} inputs of split {run.split}: exact match {said['em']:.3f}, "
            f"token F1 {said['f1']:.3f}"
        )
    screen.line(
        f"{done.step:,} steps done; the model is in {output / 'model'}, its {session.ENTRIES} beside it"
    )
    screen.line(f"serve it: EVENMESH_GENERATOR_MODELS={run.entries[0].model}={output / 'model'}")
