"""Training checkpoints: everything needed to go on exactly where training stopped."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.generator.pointer.modeling import PointerForConditionalGeneration

NAME = "checkpoint.pt"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: optimiser steps done, and seconds of computing spent on them."""

    step: int
    seconds: float


def save(
    folder: Path, model: PointerForConditionalGeneration, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write trained tensors, optimiser and random state; the old checkpoint stays until this one is whole."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    temporary = folder / f"{NAME}.{os.getpid()}"
    torch.save(
        {
            "model": trained,
            "optimizer": optimizer.state_dict(),
            "step": progress.step,
            "seconds": progress.seconds,
            "rng": torch.get_rng_state(),
        },
        temporary,
    )
    temporary.replace(folder / NAME)


def load(
    folder: Path, model: PointerForConditionalGeneration, optimizer: torch.optim.Optimizer | None = None
) -> Progress:
    """Read the checkpoint in ``folder`` into ``model`` and ``optimizer``; as data, never as code.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it was written for other tensors than the model trains.
    """
    state: dict[str, Any] = torch.load(folder / NAME, map_location="cpu", weights_only=True)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    if set(state["model"]) != trained:
        raise ValueError(f"{folder / NAME} holds other tensors than this model trains")
    model.load_state_dict(state["model"], strict=False)
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    return Progress(int(state["step"]), float(state["seconds"]))
