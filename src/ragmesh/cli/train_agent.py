"""``ragmesh train agent``: fine-tune a model as an agent that a search engine can learn from."""

from pathlib import Path
from typing import Annotated

import typer

from ragmesh.cli.failure import USAGE, CommandError
from ragmesh.cli.screen import Screen


def agent(
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to learn, as in the data: qa-open, or a kind of task: slot_filling. Repeatable.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_PATH",
            help="Encoder–decoder to start from (T5, BART, …); bundled: the pointer model that ships.",
        ),
    ] = "bundled",
    augmentation: Annotated[
        str, typer.Option(metavar="in-prompt|fid", help="How passages are shown to it.")
    ] = "in-prompt",
    output: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints, logs and the model; empty or new.")
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_FILE",
            help="Tasks: a JSON-lines file, or a folder of RAGMESH_SHARED_DATA with tasks and passages.",
        ),
    ] = "wiki-multitask",
    passages: Annotated[
        Path | None, typer.Option(help="Passages to look in, JSON lines; beside the tasks by default.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Name of these passages in the mesh, for agent.toml.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the generator calls the model; by default as the output folder.")
    ] = None,
    model_id: Annotated[
        str | None, typer.Option(help="Model id of the agent; by default as the generator calls the model.")
    ] = None,
    template: Annotated[
        str, typer.Option(help="Prompt template of the generator; by default ra-x or fusion-in-decoder.")
    ] = "",
    utility: Annotated[
        str | None,
        typer.Option(
            metavar="exact-match|accuracy|token-f1",
            help="What answers are worth; by default exact match of qa, else accuracy.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Passages shown, as far as they fit.")] = 10,
    epochs: Annotated[float, typer.Option(help="Times that every input is learnt from.")] = 10.0,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of --epochs.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Learn from so many inputs of each task, drawn from the seed.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Inputs of an optimiser step.")] = 64,
    micro_batch: Annotated[int, typer.Option(help="Of these, computed at once.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 5e-5,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-2,
    warm_up: Annotated[float, typer.Option(help="Share of the steps in which the rate rises.")] = 0.05,
    frozen_layers: Annotated[
        int | None, typer.Option(help="Pointer models: lowest encoder layers to leave as they are.")
    ] = None,
    held_out: Annotated[
        int, typer.Option(help="Inputs of split dev (or test) to measure on after every epoch.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the inputs, and of dropout.")] = 13,
    bf16: Annotated[
        bool, typer.Option("--bf16/--float32", help="Precision; float32 where a processor has no bfloat16.")
    ] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fine-tune a model as an agent: one task or several, from the passages that BM25 finds.

    Defaults are those of the paper (Salemi & Zamani, section 5.1). On a laptop: --epochs 1 --limit 500 -k 4.
    """
    from ragmesh.cli.train import with_training

    with_training()
    from services.generator.agents import session
    from services.generator.training.datasets import default_data
    from services.generator.training.recipe import RecipeError

    if output is None:
        raise CommandError("--output is missing: name a folder for the checkpoints and the model", USAGE)
    screen = Screen()
    try:
        run = session.prepare(
            session.Options(
                tasks=tuple(task or ()),
                model=model,
                augmentation=augmentation,
                output=output,
                root=default_data(),
                data=data,
                passages=passages,
                collection=collection,
                name=name,
                model_id=model_id,
                template=template,
                utility=utility,
                k=k,
                epochs=epochs,
                steps=steps,
                limit=limit,
                batch_size=batch_size,
                micro_batch=micro_batch,
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                warm_up=warm_up,
                frozen_layers=frozen_layers,
                held_out=held_out,
                seed=seed,
                bf16=bf16,
                resume=resume,
            )
        )
    except RecipeError as error:
        raise CommandError(str(error)) from None
    if run.trainer.speaks and not as_json:
        screen.note(
            f"{run.examples:,} inputs, {run.stage.steps:,} steps of {run.stage.batch_size}"
            + (f"; {run.nothing_found:,} left out: no passage shares a word" if run.nothing_found else "")
            + (f"; {run.too_long:,} left out: longer than the model reads" if run.too_long else "")
        )
    done = run.run()
    if not run.trainer.speaks:
        return
    told = {name: done.measures.get(f"five_{name}", float("nan")) for name in ("em", "f1")}
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
                "exact_match": None if told["em"] != told["em"] else told["em"],
                "token_f1": None if told["f1"] != told["f1"] else told["f1"],
            }
        )
        return
    if not done.complete:
        screen.line(f"stopped after {done.step:,} steps; go on with the same command and --resume")
        return
    if run.held_out:
        screen.line(
            f"{run.held_out} inputs of split {run.split}: exact match {told['em']:.3f}, "
            f"token F1 {told['f1']:.3f}"
        )
    screen.line(
        f"{done.step:,} steps done; the model is in {output / 'model'}, its {session.ENTRIES} beside it"
    )
    screen.line(f"serve it: RAGMESH_GENERATOR_MODELS={run.entries[0].model}={output / 'model'}")
