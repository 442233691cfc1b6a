"""Write and read checkpoints: one file, replaced as a whole, from which a run resumes exactly."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenmesh_training.rankrag.recipe import RecipeError

NAME = "checkpoint.pt"

Averages = dict[str, Tensor]
"""Averaged weights by parameter name; empty where none are kept."""


@dataclass(frozen=True)
class Progress:
    """Optimiser steps done, and seconds of computing spent on them."""

    step: int
    seconds: float


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of ``module`` that are trained, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def save(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Averages,
    progress: Progress,
    settings: Mapping[str, Any],
) -> None:
    """Write the checkpoint; the one before stays until this one is whole."""
    temporary = folder / f"{NAME}.{os.getpid()}"
    torch.save(
        {
            "model": {name: parameter.detach() for name, parameter in trained(module).items()},
            "optimizer": optimizer.state_dict(),
            "averages": averages,
            "step": progress.step,
            "seconds": progress.seconds,
            "settings": dict(settings),
        },
        temporary,
    )
    temporary.replace(folder / NAME)


def load(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    settings: Mapping[str, Any] | None,
) -> tuple[Averages, Progress]:
    """Read the checkpoint in ``folder`` into ``module`` and ``optimizer``, as data and never as code.

    ``settings``: what the run to go on is made of; None reads whatever is there.

    Raises:
        RecipeError: there is none, it belongs to another run, or it holds other tensors.
    """
    path = folder / NAME
    if not path.is_file():
        raise RecipeError(f"nothing to resume: {path} is missing; start without --resume")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if settings is not None:
        differing = sorted(_differences(state["settings"], settings))
        if differing:
            raise RecipeError(
                f"{path} belongs to another run, with other {', '.join(differing)}; "
                "resume with what it was started with, or give another --output"
            )
    parameters = trained(module)
    if set(state["model"]) != set(parameters):
        raise RecipeError(f"{path} holds other tensors than this model trains")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["model"][name])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    return state["averages"], Progress(int(state["step"]), float(state["seconds"]))


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterable[str]:
    for name in {*left, *right}:
        if left.get(name) != right.get(name):
            yield name
