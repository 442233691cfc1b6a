"""What the trainer needs of a kind of model, and what several kinds share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenmesh_training.rankrag.data.examples import Example
from evenmesh_training.rankrag.recipe import Stage

IGNORED: Final = -100
"""Label of tokens that nothing is learnt from."""


@dataclass(frozen=True)
class Prediction:
    """What a model made of one example: the text it wrote (answering kinds), else P(True) (ranking kind)."""

    text: str | None = None
    probability: float | None = None


@dataclass(frozen=True)
class Batch:
    """Tensors, and tuples of them, that move to a device together."""

    def to(self, device: torch.device) -> Self:
        """Return the same batch on ``device``."""
        return type(self)(*(_moved(getattr(self, one.name), device) for one in fields(self)))


class Learner(Protocol):
    """A model with its tokenizer, as the trainer sees it.

    ``module(batch)`` returns scalar losses by name, each a mean over the batch's examples (so that the
    examples weigh the same however they are split over micro-batches and processes); ``loss`` is the one
    that is minimised.
    """

    @property
    def module(self) -> nn.Module:
        """Return the module that turns a batch into losses; it holds all parameters."""

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the optimiser's groups: ``params`` to train, and ``lr`` at the top of the schedule."""

    def cost(self, example: Example) -> int:
        """Return the tokens that decide what an example costs; batches hold examples of similar cost."""

    def collate(self, examples: Sequence[Example]) -> Any:
        """Return what ``module`` takes, with its tensors on the CPU until ``to(device)`` is called."""

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return what the model makes of ``examples``, without gradients; restore training mode after."""

    def save(self, folder: Path) -> None:
        """Write the model so that evenmesh (and transformers, where it knows the kind) can load it."""

    def describe(self) -> Mapping[str, Any]:
        """Return what else decides the outcome, names and sizes, to compare with a checkpoint."""


def mean_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over examples of the mean negative log-likelihood of a label, in nats.

    ``logits`` [B, T, V]; ``labels`` [B, T], :data:`IGNORED` where nothing is learnt.
    """
    nll = functional.cross_entropy(
        logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
    )
    return (nll.sum(1) / (labels != IGNORED).sum(1)).mean()


def one_rate_groups(module: nn.Module, rate: float) -> list[dict[str, Any]]:
    """Return all trained parameters at one rate; norms and biases do not decay."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "lr": rate},
        {"params": [p for p in trained if p.dim() <= 1], "lr": rate, "weight_decay": 0.0},
    ]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor | Batch):
        return value.to(device)
    return tuple(_moved(one, device) for one in value) if isinstance(value, tuple) else value
