"""Train any encoder–decoder or decoder-only language model of transformers, in full or by LoRA."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from evenmesh_kit.compute.placement import LOADING
from evenmesh_training.rankrag.data.examples import Example, Kind
from evenmesh_training.rankrag.data.prompts import PromptWriter
from evenmesh_training.rankrag.learners.learner import IGNORED, Batch, Prediction, mean_nll, one_rate_groups
from evenmesh_training.rankrag.recipe import RecipeError, Stage


@dataclass(frozen=True)
class TextBatch(Batch):
    """``input_ids`` and ``attention_mask`` [B, L]; ``labels`` [B, T], -100 where nothing is learnt.

    Decoder-only models: T = L and labels stand at their own token; encoder–decoders: of the decoder.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor


class TextObjective(nn.Module):
    """Mean over examples of the mean negative log-likelihood of a target token."""

    def __init__(self, model: PreTrainedModel | PeftModel, *, encodes: bool) -> None:
        super().__init__()
        self.model = model
        self._encodes = encodes

    def forward(self, batch: TextBatch) -> dict[str, Tensor]:
        """Return ``loss``, in nats."""
        if self._encodes:
            output = self.model(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels
            )
            logits, labels = output.logits, batch.labels
        else:
            output = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
            logits, labels = output.logits[:, :-1], batch.labels[:, 1:]
        return {"loss": mean_nll(logits, labels)}


class TextLearner:
    """A language model and its tokenizer as something to train.

    Prompts that do not fit ``max_length`` lose turns, the oldest first, then their longest passages' ends,
    then (which :meth:`check` finds where it is common) their own beginning.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        stage: Stage,
        *,
        name: str,
    ) -> None:
        self._name = name
        self._encodes = bool(model.config.is_encoder_decoder)
        self._model = model
        self._tokenizer = tokenizer
        self._stage = stage
        self._writer = PromptWriter.bundled()
        self.module = TextObjective(model, encodes=self._encodes)
        self.module.train()
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._true, self._false = self._verdicts()

    @classmethod
    def load(cls, name: str, stage: Stage) -> Self:
        """Load the model called ``name`` (a folder, or a name transformers finds), without code of its own.

        Raises:
            RecipeError: it cannot be loaded, its tokenizer has no single tokens for True and False, or it
                reads fewer tokens than the stage's ``max_length``.
        """
        try:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            # LoRA leaves the weights alone, so half of the memory will do; full training needs float32
            kept = torch.bfloat16 if stage.lora and stage.bf16 else torch.float32
            with LOADING:
                model = auto.from_pretrained(name, config=config, dtype=kept, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError) as error:
            first = str(error).strip().splitlines()[0]
            raise RecipeError(f"model {name!r} cannot be loaded: {first}") from None
        if tokenizer.eos_token_id is None:
            raise RecipeError(f"the tokenizer of {name} has no end token; RankRAG's answers need one")
        held = positions(config, tokenizer)
        if held is not None and stage.max_length > held:
            raise RecipeError(
                f"max_length {stage.max_length} is more than the {held} tokens that {name} reads; lower "
                f"max_length in the recipe's stage, or take a model of longer context"
            )
        if stage.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.config.use_cache = False
        if stage.lora:
            model = _lora(model, stage, encodes=bool(config.is_encoder_decoder))
        return cls(model, tokenizer, stage, name=name)

    def check(self, examples: Sequence[Example]) -> None:
        """Check that ``examples`` fit, before anything is trained.

        Raises:
            RecipeError: a question is too long without any passage or turn.
        """
        for example in examples:
            empty = tuple(replace(s, passage=replace(s.passage, title="", text="")) for s in example.shown)
            prompt = self._ids(self._writer.write(replace(example, turns=(), shown=empty)))
            target = self._target("Assistant:", example.target)[: self._stage.max_target]
            if len(prompt) + (0 if self._encodes else len(target)) > self._stage.max_length:
                raise RecipeError(
                    f"question {example.id} of {example.source} alone is longer than max_length "
                    f"{self._stage.max_length}; raise max_length in the recipe's stage"
                )

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return all that is trained, at one rate; as usual, norms and biases do not decay."""
        return one_rate_groups(self.module, stage.learning_rate)

    def describe(self) -> Mapping[str, Any]:
        """Return the model's name and kind."""
        return {"model": self._name, "encoder_decoder": self._encodes}

    def cost(self, example: Example) -> int:
        """Return the tokens of prompt and target."""
        prompt, target = self._tokens(example)
        return len(prompt) + len(target)

    def collate(self, examples: Sequence[Example]) -> TextBatch:
        """Return prompts and targets, padded at the end."""
        rows = [self._tokens(example) for example in examples]
        if self._encodes:
            inputs = [prompt for prompt, _ in rows]
            labels = [target for _, target in rows]
        else:
            inputs = [prompt + target for prompt, target in rows]
            labels = [[IGNORED] * len(prompt) + target for prompt, target in rows]
        mask = [[1] * len(row) for row in inputs]
        return TextBatch(_pad(inputs, self._pad), _pad(mask, 0), _pad(labels, IGNORED))

    @torch.no_grad()
    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return greedy answers, and P(True) over {True, False} where one passage is to be judged."""
        self.module.eval()
        found = [self._predict(example) for example in examples]
        self.module.train()
        return found

    def save(self, folder: Path) -> None:
        """Write the model as transformers keeps it, LoRA merged in, with its tokenizer."""
        model = self._model
        if isinstance(model, PeftModel):
            model.save_pretrained(str(folder / "adapter"))
            # merged into a copy of the weights: training may go on with the adapter apart
            model.merge_adapter()
            try:
                base = model.get_base_model()
                state = {
                    key.replace(".base_layer", ""): value
                    for key, value in base.state_dict().items()
                    if "lora_" not in key
                }
                cast("Any", base).save_pretrained(str(folder), state_dict=state)
            finally:
                model.unmerge_adapter()
        else:
            cast("Any", model).save_pretrained(str(folder))
        self._tokenizer.save_pretrained(str(folder))

    def _predict(self, example: Example) -> Prediction:
        prompt, _ = self._tokens(example)
        device = next(self.module.parameters()).device
        model = cast("Any", self._model)
        if example.kind is Kind.CONTEXT_RANKING:
            start: list[int] = self._true[:-1]
            if self._encodes:
                begin = [int(model.config.decoder_start_token_id), *start]
                logits = model(
                    input_ids=torch.tensor([prompt], device=device),
                    decoder_input_ids=torch.tensor([begin], device=device),
                ).logits
            else:
                logits = model(input_ids=torch.tensor([prompt + start], device=device)).logits
            pair = logits[0, -1, [self._true[-1], self._false[-1]]].float()
            return Prediction(probability=float(pair.softmax(0)[0]))
        ids = torch.tensor([prompt], device=device)
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self._stage.max_target,
            do_sample=False,
            num_beams=1,
            pad_token_id=self._pad,
        )[0].tolist()
        said = written if self._encodes else written[len(prompt) :]
        return Prediction(text=str(self._tokenizer.decode(said, skip_special_tokens=True)).strip())

    def _verdicts(self) -> tuple[list[int], list[int]]:
        """Return the tokens of True and of False as targets: the same but for the last.

        Raises:
            RecipeError: one of them is more than one token.
        """
        true, false = (self._target("Assistant:", word)[:-1] for word in ("True", "False"))
        single = len(true) == len(false) and true[:-1] == false[:-1] and true[-1:] != false[-1:]
        unknown = self._tokenizer.unk_token_id
        if not single or (unknown is not None and unknown in (true[-1], false[-1])):
            raise RecipeError(
                f"the tokenizer of {self._name} does not have True and False as single tokens, which "
                "RankRAG's verdicts need: take another model, or add the two words to its tokenizer"
            )
        return true, false

    def _target(self, prompt: str, text: str) -> list[int]:
        """Return the tokens of ``text`` as it follows ``prompt``, and the end token."""
        end = int(cast("int", self._tokenizer.eos_token_id))
        if self._encodes:
            tokens = list(self._tokenizer(text_target=text, verbose=False).input_ids)
            return tokens if tokens and tokens[-1] == end else [*tokens, end]
        before = self._ids(prompt)
        whole = self._ids(f"{prompt} {text}")
        return [*whole[len(before) :], end]

    def _ids(self, text: str) -> list[int]:
        tokens = list(self._tokenizer(text, truncation=False, verbose=False).input_ids)
        end = self._tokenizer.eos_token_id
        # some decoder-only tokenizers end every text; the prompt goes on
        return tokens[:-1] if not self._encodes and tokens and tokens[-1] == end else tokens

    def _tokens(self, example: Example) -> tuple[list[int], list[int]]:
        prompt = self._writer.write(example)
        target = self._target("Assistant:", example.target)
        if len(target) > self._stage.max_target:
            target = target[: self._stage.max_target]
        space = self._stage.max_length - (0 if self._encodes else len(target))
        ids = self._ids(prompt)
        while len(ids) > space:
            shorter = self._shorter(example, len(ids) - space)
            if shorter is None:
                # nothing is left but the question: its end, the task, stays
                return ids[-space:], target
            example = shorter
            ids = self._ids(self._writer.write(example))
        return ids, target

    def _shorter(self, example: Example, over: int) -> Example | None:
        """Return ``example`` without its oldest turn, or with its longest passage cut by ``over`` tokens."""
        if example.turns:
            return replace(example, turns=example.turns[1:])
        sizes = [len(one.passage.text) for one in example.shown]
        if not any(sizes):
            return None
        longest = sizes.index(max(sizes))
        one = example.shown[longest]
        words = one.passage.text.split()
        kept = " ".join(words[: max(0, len(words) - max(1, over // 2))])
        cut = replace(one, passage=replace(one.passage, text=kept))
        return replace(example, shown=(*example.shown[:longest], cut, *example.shown[longest + 1 :]))


def positions(config: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return how many tokens a model reads, by its configuration or tokenizer; None if neither says."""
    stated = [
        getattr(config, name, None)
        for name in ("max_position_embeddings", "n_positions", "max_source_positions")
    ]
    # a tokenizer without a limit states a huge one
    known = [value for value in (*stated, tokenizer.model_max_length) if value and value < 10**9]
    relative = getattr(config, "relative_attention_num_buckets", None)
    return None if relative or not known else min(known)


def _lora(model: PreTrainedModel, stage: Stage, *, encodes: bool) -> PeftModel:
    settings = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM if encodes else TaskType.CAUSAL_LM,
        r=stage.lora_rank,
        lora_alpha=stage.lora_alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
    )
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as error:
        raise RecipeError(f"LoRA does not fit this model: {error}") from None
    if stage.gradient_checkpointing:
        cast("Any", model).enable_input_require_grads()
    return cast("PeftModel", adapted)


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    length = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])
