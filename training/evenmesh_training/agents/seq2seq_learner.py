"""Fine-tune an encoder–decoder of transformers (T5, BART, …) as an agent, in-prompt or Fusion-in-Decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from evenmesh.wire.errors import MeshError
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime import loading
from evenmesh_generator.runtime.prompts.text_prompter import TextPrompter
from evenmesh_generator.runtime.transformers_engines import longest_input
from evenmesh_kit.compute.model_files import ModelError, locate
from evenmesh_kit.compute.placement import Placement
from evenmesh_training.agents.prompts import InputFormat, PromptCache
from evenmesh_training.rankrag.data.examples import Example
from evenmesh_training.rankrag.learners.learner import IGNORED, Batch, Prediction, mean_nll, one_rate_groups
from evenmesh_training.rankrag.recipe import RecipeError, Stage


@dataclass(frozen=True)
class Seq2SeqBatch(Batch):
    """Token rows and what is written after them.

    ``ids`` and ``mask`` [R, L]; ``lengths``: rows' tokens; ``rows``: how many of the R rows, one after the
    other, each of B examples has; ``labels`` [B, T], -100 where nothing is learnt.
    """

    ids: Tensor
    mask: Tensor
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    labels: Tensor


class Seq2SeqObjective(nn.Module):
    """Mean over examples of the mean negative log-likelihood of a token of the answer."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Seq2SeqBatch) -> dict[str, Tensor]:
        """Return ``loss``, in nats."""
        states, mask = self.read(batch)
        logits = cast("Any", self.model)(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            labels=batch.labels,
        ).logits
        return {"loss": mean_nll(logits, batch.labels)}

    def read(self, batch: Seq2SeqBatch) -> tuple[Tensor, Tensor]:
        """Return the encoder states [B, S, H] of each example's rows in sequence, and their mask [B, S]."""
        encoder = cast("Any", self.model).get_encoder()
        states = encoder(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        whole, first = [], 0
        for count in batch.rows:
            mine = range(first, first + count)
            whole.append(torch.cat([states[row, : batch.lengths[row]] for row in mine]))
            first += count
        sizes = torch.tensor([len(one) for one in whole], device=states.device)
        side_by_side = pad_sequence(whole, batch_first=True)
        mask = torch.arange(side_by_side.shape[1], device=states.device) < sizes[:, None]
        return side_by_side, mask.long()


class Seq2SeqAgent:
    """An encoder–decoder as an agent: a :class:`~evenmesh_training.rankrag.learners.learner.Learner`.

    Raises:
        RecipeError: the template does not suit the augmentation, or the model is decoder-only.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stage: Stage,
        input_format: InputFormat,
        *,
        name: str,
    ) -> None:
        if not model.config.is_encoder_decoder:
            raise RecipeError(f"--model {name} is decoder-only; agents are encoder–decoders (T5, BART, …)")
        if tokenizer.eos_token_id is None:
            raise RecipeError(f"--model {name}: its tokenizer has no end token")
        templates = TemplateLibrary.bundled()
        if input_format.template:
            try:
                templates.suiting(input_format.template, input_format.augmentation)
            except MeshError as error:
                raise RecipeError(f"--template {input_format.template}: {error}") from None
        self._model = model
        self._tokenizer = tokenizer
        self._input_format = input_format
        self._name = name
        self._max_target = stage.max_target
        self._pad = int(
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
        prompter = TextPrompter(
            name,
            tokenizer,
            templates,
            encodes=True,
            start=None,
            template="",
            most_input=longest_input(model, tokenizer, stage.max_length),
        )
        self._prompts = PromptCache(prompter, input_format)
        self._objective = Seq2SeqObjective(model)
        self._objective.train()

    @classmethod
    def load(cls, name: str, stage: Stage, input_format: InputFormat) -> Self:
        """Load the model of the folder, or of that name on the hub, in float32.

        Raises:
            RecipeError: it cannot be had, or is of another kind.
        """
        try:
            folder = locate(name, allow_download=True)
            model, tokenizer = loading.load(folder, Placement(torch.device("cpu"), torch.float32))
        except ModelError as error:
            raise RecipeError(f"--model {name} cannot be loaded: {error}") from None
        return cls(model, tokenizer, stage, input_format, name=name)

    @property
    def module(self) -> nn.Module:
        """Return the module that computes the losses."""
        return self._objective

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Return the ``examples`` whose input the model can read."""
        return self._prompts.fitting(examples)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return all weights at one rate; norms and biases do not decay."""
        return one_rate_groups(self._objective, stage.learning_rate)

    def describe(self) -> Mapping[str, Any]:
        """Return the model's name and how it reads."""
        return {
            "model": self._name,
            "augmentation": self._input_format.augmentation.value,
            "template": self._input_format.template,
        }

    def cost(self, example: Example) -> int:
        """Return the tokens of all its rows."""
        return self._prompts(example).tokens

    def collate(self, examples: Sequence[Example]) -> Seq2SeqBatch:
        """Return rows and labels, padded at the end."""
        prompts = [self._prompts(example) for example in examples]
        rows = [torch.tensor(row) for prompt in prompts for row in prompt.rows]
        lengths = tuple(len(row) for row in rows)
        ids = pad_sequence(rows, batch_first=True, padding_value=self._pad)
        mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
        labels = [torch.tensor(self._target(example.answer)) for example in examples]
        return Seq2SeqBatch(
            ids,
            mask,
            lengths,
            tuple(len(prompt.rows) for prompt in prompts),
            pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        )

    @torch.no_grad()
    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return greedy answers."""
        self._objective.eval()
        device = next(self._objective.parameters()).device
        found = []
        for example in examples:
            states, mask = self._objective.read(self.collate([example]).to(device))
            written = cast("Any", self._model).generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                attention_mask=mask,
                max_new_tokens=self._max_target,
                do_sample=False,
                num_beams=1,
            )[0]
            found.append(
                Prediction(text=str(self._tokenizer.decode(written, skip_special_tokens=True)).strip())
            )
        self._objective.train()
        return found

    def save(self, folder: Path) -> None:
        """Write the model as transformers and the generator load it, with its tokenizer."""
        cast("Any", self._model).save_pretrained(str(folder))
        self._tokenizer.save_pretrained(str(folder))

    def _target(self, answer: str) -> list[int]:
        end = int(cast("int", self._tokenizer.eos_token_id))
        tokens = list(self._tokenizer(text_target=answer, verbose=False).input_ids)
        tokens = tokens if tokens and tokens[-1] == end else [*tokens, end]
        return tokens if len(tokens) <= self._max_target else [*tokens[: self._max_target - 1], end]
