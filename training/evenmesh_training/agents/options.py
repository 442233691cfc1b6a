"""Options of an agent's training that have a default, as the command line takes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How an agent is trained. Defaults are the paper's (Salemi & Zamani, section 5.1, appendix B)."""

    model: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_PATH",
            help="Encoder–decoder to start from (T5, BART, …); bundled: the pointer model that ships.",
        ),
    ] = "bundled"
    augmentation: Annotated[
        str, typer.Option(metavar="in-prompt|fid", help="How passages are shown to it.")
    ] = "in-prompt"
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_FILE",
            help="Tasks: a JSON-lines file, or a folder of EVENMESH_SHARED_DATA with tasks and passages.",
        ),
    ] = "wiki-multitask"
    passages: Annotated[
        Path | None, typer.Option(help="Passages, JSON lines. Default: the file next to the tasks.")
    ] = None
    collection: Annotated[
        str | None, typer.Option(help="Name of these passages in the mesh, for agent.toml.")
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="The generator's name for the model. Default: the name of the output folder."),
    ] = None
    model_id: Annotated[
        str | None, typer.Option(help="Model id of the agent. Default: the generator's name for the model.")
    ] = None
    template: Annotated[
        str, typer.Option(help="Prompt template of the generator; by default ra-x or fusion-in-decoder.")
    ] = ""
    utility: Annotated[
        str | None,
        typer.Option(
            metavar="exact-match|accuracy|token-f1",
            help="Utility of answers. Default: exact match for qa, else accuracy.",
        ),
    ] = None
    k: Annotated[int, typer.Option("--k", "-k", help="Passages shown, if they fit.")] = 10
    epochs: Annotated[float, typer.Option(help="Passes over all inputs.")] = 10.0
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of --epochs.")] = None
    limit: Annotated[
        int | None, typer.Option(help="Most inputs of each task to learn from, drawn from the seed.")
    ] = None
    batch_size: Annotated[int, typer.Option(help="Inputs of an optimiser step.")] = 64
    micro_batch: Annotated[int, typer.Option(help="Inputs per pass of the model.")] = 8
    learning_rate: Annotated[float, typer.Option(help="AdamW's value.")] = 5e-5
    weight_decay: Annotated[float, typer.Option(help="AdamW's value.")] = 1e-2
    warm_up: Annotated[float, typer.Option(help="Share of the steps in which the rate rises.")] = 0.05
    frozen_layers: Annotated[
        int | None, typer.Option(help="Pointer models: lowest encoder layers to keep frozen.")
    ] = None
    held_out: Annotated[
        int, typer.Option(help="Inputs of split dev (or test) to measure on after every epoch.")
    ] = 200
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the inputs, and of dropout.")] = 13
    bf16: Annotated[
        bool, typer.Option("--bf16/--float32", help="Precision; float32 where a processor has no bfloat16.")
    ] = True
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the checkpoint in --output.")] = False
