"""Fine-tune a pointer model as an agent: it learns its answer from all passages shown, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from evenmesh_generator.domain import Augmentation
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.reader import Encodings
from evenmesh_generator.pointer.tokenization import Pair, PairTokenizer, in_one_text
from evenmesh_generator.runtime.prompts.pair_prompter import PairPrompter
from evenmesh_training.agents.prompts import InputFormat, PromptCache
from evenmesh_training.rankrag.data.examples import Example
from evenmesh_training.rankrag.learners.pointer_learner import PointerBatch, PointerLearner
from evenmesh_training.rankrag.recipe import Stage


class PointerAgent(PointerLearner):
    """A pointer model as an agent, learning from the pairs that serve it.

    It learns neither to abstain nor to judge: the loss is the cross-entropy of the right answer, as in the
    paper.
    """

    def __init__(
        self,
        model: PointerForConditionalGeneration,
        tokenizer: PairTokenizer,
        stage: Stage,
        input_format: InputFormat,
    ) -> None:
        super().__init__(model, tokenizer, stage)
        config = cast(PointerConfig, model.config)
        self._bases = config.frozen_layers
        self._in_prompt = input_format.augmentation is Augmentation.IN_PROMPT
        self._augmentation = input_format.augmentation.value
        self._prompts = PromptCache(
            PairPrompter("it", tokenizer, config.settings(), limit=self._limit), input_format
        )

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Return the ``examples`` whose input the model can read."""
        return self._prompts.fitting(examples)

    def describe(self) -> Mapping[str, Any]:
        """Return sizes, base, and how it reads."""
        return {**super().describe(), "augmentation": self._augmentation}

    def cost(self, example: Example) -> int:
        """Return the tokens of all its pairs."""
        return self._prompts(example).tokens

    def collate(self, examples: Sequence[Example]) -> PointerBatch:
        """Return the pairs of ``examples`` and the answer from all of each one's, with nothing to judge."""
        pairs: list[Pair] = []
        groups: list[int] = []
        wanted = []
        for number, example in enumerate(examples):
            prompt = self._prompts(example)
            rows = tuple(range(len(pairs), len(pairs) + len(prompt.rows)))
            pairs += [Pair(row, head, head) for row, head in zip(prompt.rows, prompt.heads, strict=True)]
            groups += [number] * len(rows)
            wanted.append((rows, self._target(example.answer), 1.0))
        return self._batch(pairs, [-1] * len(pairs), groups, wanted, len(examples))

    @property
    def _read_limit(self) -> int:
        return int(self.model.config.max_position_embeddings) if self._in_prompt else self._limit

    def _read(self, example: Example) -> list[tuple[str, str]]:
        passages = super()._read(example)
        if not self._in_prompt:
            return passages
        kept = len(passages) - self._prompts(example).dropped_passages
        return [("", in_one_text(passages[:kept]))]

    def _copied(self, example: Example, encodings: Encodings) -> Encodings:
        shown = self._prompts(example).shown
        if not self._in_prompt:
            return encodings
        passages = tuple(one.passage.text for one in example.shown[: len(shown)])
        return replace(
            encodings,
            passages=passages,
            texts=tuple(self._tokenizer.text(one) for one in passages),
            shown=shown,
        )

    def save(self, folder: Path) -> None:
        """Write the shipped form, with frozen layers that are not the base model's."""
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
