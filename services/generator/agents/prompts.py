"""What an agent is shown, by the prompter that serves it: what it learns is what it will be asked."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from meshkit.errors import InvalidField
from services.generator.domain import Augmentation, GenerationRequest, Passage
from services.generator.runtime.networks import Prompt
from services.generator.training.examples import Example


class Prompter(Protocol):
    """Turns requests into tokens."""

    def prompt(self, request: GenerationRequest) -> Prompt:
        """What the model reads to answer."""


@dataclass(frozen=True)
class Reading:
    """How an agent reads: in-prompt or Fusion-in-Decoder, by which template ("": the model's own)."""

    augmentation: Augmentation
    template: str = ""

    def request(self, example: Example) -> GenerationRequest:
        """What a client would ask."""
        return GenerationRequest(
            example.question,
            tuple(Passage(s.passage.id, s.passage.title, s.passage.text) for s in example.shown),
            augmentation=self.augmentation,
            template=self.template,
        )


class Prompts:
    """The prompts of examples; asked for twice an epoch, so they are kept."""

    def __init__(self, prompter: Prompter, reading: Reading) -> None:
        self._prompter = prompter
        self._reading = reading
        self._made: dict[tuple[str, str], Prompt] = {}

    def __call__(self, example: Example) -> Prompt:
        """The prompt of an example."""
        key = (example.source, example.id)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._prompter.prompt(self._reading.request(example))
        return made

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Those of ``examples`` whose input the model can read; serving refuses the others."""
        found = []
        for example in examples:
            with suppress(InvalidField):
                self(example)
                found.append(example)
        return found
