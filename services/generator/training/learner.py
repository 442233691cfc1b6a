"""What the trainer needs of a kind of model; one implementation per way of reading examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from services.generator.training.examples import Example
from services.generator.training.recipe import Stage


@dataclass(frozen=True)
class Judged:
    """What a model made of one example: the text it wrote (answering kinds), else P(True) (ranking one)."""

    text: str | None = None
    probability: float | None = None


class Learner(Protocol):
    """A model with its tokenizer, as the trainer sees it.

    ``module(batch)`` returns scalar losses by name, each a mean over the batch's examples (so that the
    examples weigh the same however they are split over micro-batches and processes); ``loss`` is the one
    that is minimised.
    """

    @property
    def module(self) -> nn.Module:
        """What turns a batch into losses; holds all parameters."""

    def check(self, examples: Sequence[Example]) -> None:
        """Whether ``examples``, a sample of what is to come, fit the model.

        Raises:
            RecipeError: they do not.
        """

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Groups for the optimiser: ``params`` that are trained, and ``lr`` at the top of the schedule."""

    def cost(self, example: Example) -> int:
        """Tokens that decide what an example costs; batches are made of examples of like cost."""

    def collate(self, examples: Sequence[Example]) -> Any:
        """What ``module`` takes; its tensors are on the processor until ``to(device)`` is called."""

    def judge(self, examples: Sequence[Example]) -> list[Judged]:
        """What the model, as it is, makes of ``examples``; no gradients, and training mode is left again."""

    def save(self, folder: Path) -> None:
        """Write the model so that ragmesh (and transformers, where it knows it) can load it."""

    def describe(self) -> Mapping[str, Any]:
        """What else decides the outcome, for the checkpoint to be compared with: names and sizes."""
