"""``evenmesh train``: train your own models to rank and to answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen
from evenmesh_training.commands.requirements import with_training
from evenmesh_training.commands.train_agent import agent
from evenmesh_training.commands.train_ium import ium

if TYPE_CHECKING:
    from evenmesh_training.rankrag.data.blend import Blend
    from evenmesh_training.rankrag.data.examples import Kind


def train() -> typer.Typer:
    """Return the commands of ``evenmesh train``."""
    return group(
        "train", "Train a model that ranks and answers, from local files.", rankrag, export, agent, ium
    )


def rankrag(
    recipe: Annotated[
        str, typer.Option(help="TOML file, or a preset: bundled, documentation, gpu, laptop, paper.")
    ] = "laptop",
    stage: Annotated[int, typer.Option(min=1, max=2, help="1: follow instructions; 2: rank and answer.")] = 2,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_PATH",
            help="Language model to start from; bundled: the one that ships; pointer: a new one of its kind.",
        ),
    ] = "bundled",
    output: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints, logs and the model; empty or new.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Leave out a kind of examples, as in the paper's ablations: retrieval-augmented-qa, "
            "retrieval-augmented-ranking, … May be repeated.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets. Default: EVENMESH_SHARED_DATA.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the blend and check it.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the checkpoint in --output.")] = False,
    lora: Annotated[
        bool | None,
        typer.Option("--lora/--full", help="Train adapters or all weights; overrides the recipe."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps; overrides the recipe.")] = None,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--float32", help="Precision; overrides the recipe.")
    ] = None,
    frozen_layers: Annotated[
        int | None,
        typer.Option(min=0, help="Pointer models: lowest encoder layers to keep frozen."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the blend or the result as JSON.")] = False,
) -> None:
    """Train a model by RankRAG's recipe, or show the blend of its data.

    On several GPUs or processes: torchrun --nproc-per-node N --no-python evenmesh train rankrag ...
    """
    with_training()
    from evenmesh_training.rankrag import recipe as recipes
    from evenmesh_training.rankrag import session
    from evenmesh_training.rankrag.data.blend import Blend, described
    from evenmesh_training.rankrag.data.datasets import default_data

    screen = Screen()
    folder = data or default_data()
    try:
        chosen = recipes.load(recipe)
        if without:
            chosen = recipes.without(chosen, _kinds(without))
        if dry_run:
            blend = Blend(chosen, folder, stage=stage)
            if as_json:
                screen.json(described(blend))
            else:
                show(screen, blend)
            return
        if output is None:
            raise CommandError("--output is missing: name a folder for the checkpoints and the model", USAGE)
        options = session.Options(
            model=model,
            stage=stage,
            output=output,
            data=folder,
            resume=resume,
            lora=lora,
            steps=steps,
            bf16=bf16,
            frozen_layers=frozen_layers,
        )
        trainer = session.prepare(chosen, options)
    except recipes.RecipeError as error:
        raise CommandError(str(error)) from None
    done = trainer.run()
    if not trainer.is_main:
        return
    if as_json:
        screen.json(done)
    elif done.complete:
        screen.line(f"{done.step:,} steps done; the model is in {output / 'model'}")
    else:
        screen.line(f"stopped after {done.step:,} steps; go on with the same command and --resume")


def _kinds(names: list[str]) -> "list[Kind]":
    from evenmesh_training.rankrag.data.examples import Kind

    known = {kind.value: kind for kind in Kind}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandError(f"--without {unknown[0]}: allowed: {', '.join(known)}", USAGE)
    return [known[name] for name in dict.fromkeys(names)]


def export(
    run: Annotated[Path, typer.Argument(help="Folder that a training run writes to.")],
    output: Annotated[Path, typer.Option(help="Folder for the model.")],
) -> None:
    """Write the model of a run's last checkpoint, finished or not, with its averaged weights."""
    with_training()
    from evenmesh_training.rankrag import session
    from evenmesh_training.rankrag.recipe import RecipeError

    try:
        step = session.export(run, output)
    except RecipeError as error:
        raise CommandError(str(error)) from None
    Screen().line(f"the model after {step:,} steps is in {output}")


def show(screen: Screen, blend: "Blend") -> None:
    """Print what goes into a blend: a line per source, then what is missing and what was removed."""
    from evenmesh_training.rankrag.data.blend import summary

    numbers = ("questions", "recipe", "share", "leaked", "unusable")
    table = screen.table("source", "data set", "kind", "split", "licence", *numbers, right=numbers)
    for row in blend.rows:
        table.add_row(
            row.source.name,
            row.source.dataset,
            str(row.source.kind),
            row.split,
            row.licence,
            f"{row.items:,}",
            f"for {row.source.instead_of}" if row.source.instead_of else f"{100 * row.wanted:.1f} %",
            f"{100 * row.share:.1f} %" if row.missing is None else "missing",
            f"{row.leaked.questions + row.leaked.orphans:,}",
            f"{row.unusable:,}",
        )
    screen.out.print(table)
    for heading, lines in summary(blend).items():
        if lines:
            screen.line(f"{heading}: {'; '.join(lines)}")
