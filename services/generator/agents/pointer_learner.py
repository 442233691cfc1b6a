"""Fine-tunes a pointer model as an agent: its answer from all that it is shown, and nothing else."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch

from services.generator.agents.prompts import Prompts, Reading
from services.generator.domain import Augmentation
from services.generator.pointer.configuration import PointerConfig
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.padding import pad_pairs
from services.generator.pointer.reader import PointerReader
from services.generator.pointer.tokenization import Pair, PairTokenizer, in_one_text
from services.generator.runtime.networks import Prompt
from services.generator.runtime.pairs import PairPrompter
from services.generator.training.examples import Example
from services.generator.training.learner import Judged
from services.generator.training.pointer_learner import PAIRS_TOGETHER, PointerBatch, PointerLearner
from services.generator.training.recipe import RecipeError, Stage

_TOGETHER: Final = 16


class PointerAgent(PointerLearner):
    """A pointer model as an agent, learning from the pairs that serve it.

    It is not taught to abstain, nor to judge: cross-entropy of the right answer alone, as the paper does.
    """

    def __init__(
        self,
        model: PointerForConditionalGeneration,
        tokenizer: PairTokenizer,
        stage: Stage,
        reading: Reading,
    ) -> None:
        super().__init__(model, tokenizer, stage)
        config = cast(PointerConfig, model.config)
        self._bases = config.frozen_layers
        self._reading = reading
        self._prompts = Prompts(PairPrompter("it", tokenizer, config, limit=self._limit), reading)

    def check(self, examples: Sequence[Example]) -> None:
        """Whether every input fits.

        Raises:
            RecipeError: one does not.
        """
        fitting = {example.id for example in self.fitting(examples)}
        for example in examples:
            if example.id not in fitting:
                raise RecipeError(f"input {example.id} of {example.source} is longer than the model reads")

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Those of ``examples`` whose input the model can read."""
        return self._prompts.fitting(examples)

    def describe(self) -> Mapping[str, Any]:
        """Sizes, base, and how it reads."""
        return {**super().describe(), "augmentation": self._reading.augmentation.value}

    def cost(self, example: Example) -> int:
        """Tokens of all its pairs."""
        return self._prompts(example).tokens

    def collate(self, examples: Sequence[Example]) -> PointerBatch:
        """Pairs and the answer from all of them, with nothing to judge."""
        prompts = [self._prompts(example) for example in examples]
        pairs = [
            (row, head, number)
            for number, prompt in enumerate(prompts)
            for row, head in zip(prompt.rows, prompt.heads, strict=True)
        ]
        order = sorted(range(len(pairs)), key=lambda at: len(pairs[at][0]))
        place = {pair: at for at, pair in enumerate(order)}
        wanted = []
        first = 0
        for example, prompt in zip(examples, prompts, strict=True):
            rows = tuple(place[first + at] for at in range(len(prompt.rows)))
            first += len(prompt.rows)
            wanted.append((rows, self._target(example.answer), 1.0))
        runs = [
            [pairs[at] for at in order[begin : begin + PAIRS_TOGETHER]]
            for begin in range(0, len(order), PAIRS_TOGETHER)
        ]
        return PointerBatch(
            tuple(pad_pairs([Pair(row, head, head, 0) for row, head, _ in run]) for run in runs),
            self._decodings(wanted),
            torch.full((len(pairs),), -1),
            torch.tensor([pairs[at][2] for at in order]),
            torch.zeros(len(pairs)),
            len(examples),
        )

    def judge(self, examples: Sequence[Example]) -> list[Judged]:
        """Greedy answers."""
        limit = self._limit
        together = self._reading.augmentation is Augmentation.IN_PROMPT
        if together:
            limit = self.model.config.max_position_embeddings
        reader = PointerReader(self.model, self._tokenizer, limit=limit)
        order = sorted(range(len(examples)), key=lambda at: self.cost(examples[at]))
        out: dict[int, Judged] = {}
        for begin in range(0, len(order), _TOGETHER):
            picked = order[begin : begin + _TOGETHER]
            encodings = reader.encode_many(
                [
                    (examples[at].question, _shown(examples[at], self._prompts(examples[at]), together))
                    for at in picked
                ]
            )
            answers = reader.answer_many(encodings, max_new_tokens=self._max_target)
            out |= {at: Judged(text=one.text) for at, one in zip(picked, answers, strict=True)}
        self.module.train()
        return [out[at] for at in range(len(examples))]

    def save(self, folder: Path) -> None:
        """The shipped form, with the layers that stayed as they were but are not the base model's."""
        kept = [p for layer in self.model.encoder.layers[self._bases :] for p in layer.parameters()]
        trained = [p.requires_grad for p in kept]
        try:
            # what is not trained is taken for the base model's, and left out
            for parameter in kept:
                parameter.requires_grad_(True)
            super().save(folder)
        finally:
            for parameter, was in zip(kept, trained, strict=True):
                parameter.requires_grad_(was)


def _shown(example: Example, prompt: Prompt, together: bool) -> list[tuple[str, str]]:
    """Titles and texts as the reader takes them; in-prompt what fits of them, as one text."""
    passages = [(one.passage.title, one.passage.text) for one in example.shown]
    if not together:
        return passages
    return [("", in_one_text(passages[: len(passages) - prompt.dropped_passages]))]
