"""Fine-tunes an encoder–decoder of transformers (T5, BART, …) as an agent, in-prompt or Fusion-in-Decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from meshkit.errors import MeshError
from meshkit.models import ModelError, locate
from meshkit.placement import Placement
from services.generator.agents.prompts import Prompts, Reading
from services.generator.prompts import TemplateLibrary
from services.generator.runtime import loading
from services.generator.runtime.assembly import longest_input
from services.generator.runtime.prompting import TextPrompter
from services.generator.training.examples import Example
from services.generator.training.learner import Judged
from services.generator.training.recipe import RecipeError, Stage

_IGNORED = -100


@dataclass(frozen=True)
class Seq2SeqBatch:
    """Token rows and what is written after them.

    ``ids`` and ``mask`` [R, L]; ``lengths``: rows' tokens; ``rows``: how many of the R rows, one after the
    other, each of B examples has; ``labels`` [B, T], -100 where nothing is learnt.
    """

    ids: Tensor
    mask: Tensor
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    labels: Tensor

    def to(self, device: torch.device) -> Self:
        """The same on ``device``."""
        return type(self)(
            self.ids.to(device), self.mask.to(device), self.lengths, self.rows, self.labels.to(device)
        )


class Seq2SeqObjective(nn.Module):
    """Mean over examples of the mean negative log-likelihood of a token of the answer."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Seq2SeqBatch) -> dict[str, Tensor]:
        """``loss``, in nats."""
        states, mask = self.read(batch)
        logits = cast("Any", self.model)(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            labels=batch.labels,
        ).logits
        known = batch.labels != _IGNORED
        nll = functional.cross_entropy(
            logits.float().transpose(1, 2), batch.labels, ignore_index=_IGNORED, reduction="none"
        )
        return {"loss": (nll.sum(1) / known.sum(1)).mean()}

    def read(self, batch: Seq2SeqBatch) -> tuple[Tensor, Tensor]:
        """Encoder states [B, S, H] of an example's rows, one after the other, and their mask [B, S]."""
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
    """An encoder–decoder as an agent: a :class:`~services.generator.training.learner.Learner`.

    Raises:
        RecipeError: the template does not suit the augmentation, or the model is decoder-only.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stage: Stage,
        reading: Reading,
        *,
        name: str,
    ) -> None:
        if not model.config.is_encoder_decoder:
            raise RecipeError(f"--model {name} is decoder-only; agents are encoder–decoders (T5, BART, …)")
        if tokenizer.eos_token_id is None:
            raise RecipeError(f"--model {name}: its tokenizer has no end token")
        templates = TemplateLibrary.bundled()
        if reading.template:
            try:
                templates.suiting(reading.template, reading.augmentation)
            except MeshError as error:
                raise RecipeError(f"--template {reading.template}: {error}") from None
        self._model = model
        self._tokenizer = tokenizer
        self._reading = reading
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
        self._prompts = Prompts(prompter, reading)
        self._objective = Seq2SeqObjective(model)
        self._objective.train()

    @classmethod
    def load(cls, name: str, stage: Stage, reading: Reading) -> Self:
        """The model in the folder ``name``, or called so on the hub, in float32.

        Raises:
            RecipeError: it cannot be had, or is of another kind.
        """
        try:
            folder = locate(name, allow_download=True)
            model, tokenizer = loading.load(folder, Placement(torch.device("cpu"), torch.float32))
        except ModelError as error:
            raise RecipeError(f"--model {name} cannot be loaded: {error}") from None
        return cls(model, tokenizer, stage, reading, name=name)

    @property
    def module(self) -> nn.Module:
        """The losses."""
        return self._objective

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

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """All weights at one rate; norms and biases, as usual, do not decay."""
        trained = [p for p in self._objective.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if p.dim() > 1], "lr": stage.learning_rate},
            {"params": [p for p in trained if p.dim() <= 1], "lr": stage.learning_rate, "weight_decay": 0.0},
        ]

    def describe(self) -> Mapping[str, Any]:
        """The model's name and how it reads."""
        return {
            "model": self._name,
            "augmentation": self._reading.augmentation.value,
            "template": self._reading.template,
        }

    def cost(self, example: Example) -> int:
        """Tokens of all its rows."""
        return self._prompts(example).tokens

    def collate(self, examples: Sequence[Example]) -> Seq2SeqBatch:
        """Rows and labels, padded at the end."""
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
            pad_sequence(labels, batch_first=True, padding_value=_IGNORED),
        )

    @torch.no_grad()
    def judge(self, examples: Sequence[Example]) -> list[Judged]:
        """Greedy answers."""
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
            found.append(Judged(text=str(self._tokenizer.decode(written, skip_special_tokens=True)).strip()))
        self._objective.train()
        return found

    def save(self, folder: Path) -> None:
        """The model as transformers and the generator load it, with its tokenizer."""
        cast("Any", self._model).save_pretrained(str(folder))
        self._tokenizer.save_pretrained(str(folder))

    def _target(self, answer: str) -> list[int]:
        end = int(cast("int", self._tokenizer.eos_token_id))
        tokens = list(self._tokenizer(text_target=answer, verbose=False).input_ids)
        tokens = tokens if tokens and tokens[-1] == end else [*tokens, end]
        return tokens if len(tokens) <= self._max_target else [*tokens[: self._max_target - 1], end]
