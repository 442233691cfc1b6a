"""Make an agent's prompts with the prompter that serves it, so that training and serving agree."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from evenmesh.wire.errors import InvalidField
from evenmesh_generator.domain import Augmentation, GenerationRequest
from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_training.rankrag.data.examples import Example


class Prompter(Protocol):
    """Turns requests into tokens."""

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Return what the model reads to answer."""


@dataclass(frozen=True)
class InputFormat:
    """How an agent reads: in-prompt or Fusion-in-Decoder, by which template ("": the model's own)."""

    augmentation: Augmentation
    template: str = ""

    def request(self, example: Example) -> GenerationRequest:
        """Return the request that a client would send."""
        return GenerationRequest(
            example.question,
            tuple(one.passage for one in example.shown),
            augmentation=self.augmentation,
            template=self.template,
        )


class PromptCache:
    """Makes and keeps the prompts of examples, which are needed twice an epoch."""

    def __init__(self, prompter: Prompter, input_format: InputFormat) -> None:
        self._prompter = prompter
        self._input_format = input_format
        self._made: dict[tuple[str, str], Prompt] = {}

    def __call__(self, example: Example) -> Prompt:
        """Return the prompt of an example."""
        key = (example.source, example.id)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._prompter.prompt(self._input_format.request(example))
        return made

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Return the ``examples`` whose input the model can read; serving refuses the others."""
        found = []
        for example in examples:
            with suppress(InvalidField):
                self(example)
                found.append(example)
        return found
