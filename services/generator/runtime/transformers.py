"""Any encoder–decoder or decoder-only model of the transformers library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from meshkit.errors import FailedPrecondition, InvalidField, MeshError
from meshkit.lengths import by_length
from services.generator.domain import (
    Answer,
    Augmentation,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
)
from services.generator.ports import Cancellation
from services.generator.prompts import TemplateLibrary, cut_to_fit, most_passages
from services.generator.runtime.computed import Emit
from services.generator.runtime.decoding import Decoder, Written
from services.generator.runtime.detokenizer import IncrementalDetokenizer

RANKING_TEMPLATE = "rankrag-context-ranking"
"""The prompt whose P(True) is the relevance (Yu et al., RankRAG, appendix D.1)."""

_UNBOUNDED_INPUT = 2048
"""Tokens read by a model whose configuration names no limit. Tokens."""

_MOST_NEW_TOKENS = 4096
"""Longest answer of a model whose decoder has no limit of its own. Tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model reads: token rows, one for all passages or (Fusion-in-Decoder) one per passage."""

    rows: tuple[tuple[int, ...], ...]
    dropped_passages: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.rows))


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Tokens that tell "True" from "False": after ``prefix``, ``true`` or ``false`` comes."""

    prefix: tuple[int, ...]
    true: int
    false: int


class TransformersModel:
    """A :class:`~services.generator.runtime.computed.ComputedModel` around one transformers model.

    Passages go into the prompt, or (encoder–decoders) each is encoded with the question and the decoder
    attends to all of them side by side. Prompts that do not fit lose whole passages from the end; when not
    even the first fits, its text is cut; the question is never cut.

    Args:
        instruction: whether the model follows instructions and can write a background document of its own;
            None: if its tokenizer has a chat template.
        template: template of in-prompt augmentation when a request names none; empty: chosen by architecture.
        max_input_tokens: reads at most so many tokens; None: what the configuration says.
        batch_tokens: most padded tokens in a batch. Tokens, [1, inf).
    """

    def __init__(
        self,
        name: str,
        version: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        templates: TemplateLibrary,
        *,
        instruction: bool | None = None,
        template: str = "",
        max_input_tokens: int | None = None,
        batch_tokens: int = 8192,
    ) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        # A fast tokenizer sets its truncation in place and must not be used by two threads at once.
        self._tokenizer_lock = Lock()
        self._templates = templates
        self._batch_tokens = batch_tokens
        self._encodes = bool(model.config.is_encoder_decoder)
        self._chats = not self._encodes and bool(tokenizer.chat_template)
        ends = _ids(model.generation_config.eos_token_id) or _ids(tokenizer.eos_token_id)
        pads = _ids(tokenizer.pad_token_id) or _ids(model.generation_config.pad_token_id) or ends or (0,)
        self._pad = pads[0]
        self._decoder = Decoder(model, pad=self._pad, ends=ends)
        self._start = _ids(model.generation_config.decoder_start_token_id) or _ids(
            model.generation_config.bos_token_id
        )
        self._defaults = {
            Augmentation.IN_PROMPT: template or self._default_template(),
            Augmentation.FUSION_IN_DECODER: "fusion-in-decoder",
            Augmentation.RETRIEVAL_FREE: "question" if self._encodes else "eor-retrieval-free-llama2-chat",
        }
        self._verdicts = self._find_verdicts()
        most_input = self._most_input(max_input_tokens)
        self._description = ModelDescription(
            name=name,
            version=version,
            engine="transformers",
            architecture=type(model).__name__,
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            scores_relevance=self._verdicts is not None,
            max_input_tokens=most_input,
            max_new_tokens=self._most_new(most_input),
            augmentations=self._augmentations(self._chats if instruction is None else instruction),
        )

    def describe(self) -> ModelDescription:
        """What the model is and can do."""
        return self._description

    def stream(self, request: GenerationRequest, cancel: Cancellation, emit: Emit) -> Answer:
        """Writes one answer; greedy and sampled text as it comes, beam search's at the end.

        Raises:
            InvalidField: the question does not fit.
            Cancelled, DeadlineExceeded: nobody waits any more.
        """
        prompt = self._prompt(request)
        text = IncrementalDetokenizer(self._decode)

        def on_token(token: int) -> None:
            if delta := text.push(token):
                emit(delta)

        decoding = request.decoding
        inputs = self._inputs([prompt], cancel)
        if decoding.num_beams > 1:
            (written,) = self._decoder.write(inputs, [decoding], [request.question], cancel)
            answer = self._answer(prompt, written)
            if answer.text:
                emit(answer.text)
            return answer
        (written,) = self._decoder.write(inputs, [decoding], [request.question], cancel, on_token)
        if rest := text.finish():
            emit(rest)
        return self._answer(prompt, written, text.text)

    def batch(self, requests: Sequence[GenerationRequest], cancel: Cancellation) -> list[Answer | MeshError]:
        """One answer or one error per request; like decodings and lengths run together."""
        outcomes: list[Answer | MeshError | None] = [None] * len(requests)
        groups: dict[tuple[int, int], list[tuple[int, Prompt]]] = {}
        for index, request in enumerate(requests):
            cancel.check()
            try:
                prompt = self._prompt(request)
            except MeshError as error:
                outcomes[index] = error
                continue
            key = (request.decoding.num_beams, request.decoding.max_new_tokens)
            groups.setdefault(key, []).append((index, prompt))
        for (num_beams, max_new_tokens), items in groups.items():
            costs = [(prompt.tokens + max_new_tokens) * num_beams for _, prompt in items]
            for chosen in by_length(costs, self._batch_tokens):
                rows = [items[at] for at in chosen]
                written = self._decoder.write(
                    self._inputs([prompt for _, prompt in rows], cancel),
                    [requests[index].decoding for index, _ in rows],
                    [requests[index].question for index, _ in rows],
                    cancel,
                )
                for (index, prompt), one in zip(rows, written, strict=True):
                    outcomes[index] = self._answer(prompt, one)
        return [outcome for outcome in outcomes if outcome is not None]

    def relevance(
        self, question: str, passages: Sequence[Passage], normalization: Normalization, cancel: Cancellation
    ) -> list[float]:
        """P(True) per passage; a passage that does not fit is cut at its end.

        Of verdicts of several tokens, the first by which they differ counts.

        Raises:
            FailedPrecondition: the tokenizer does not tell True from False.
            InvalidField: the question does not fit.
            Cancelled, DeadlineExceeded: nobody waits any more.
        """
        if self._verdicts is None:
            raise FailedPrecondition(
                "NO_RELEVANCE", f"the tokenizer of {self._description.name} does not tell True from False"
            )
        verdicts = self._verdicts
        template = self._templates.get(RANKING_TEMPLATE)
        prefix = () if self._encodes else verdicts.prefix
        limit = self._description.max_input_tokens - len(prefix) - (0 if self._encodes else 1)

        def read(passage: Passage) -> tuple[int, ...]:
            return self._tokens(template.render(question, [passage]))

        texts = [template.render(question, [passage]) for passage in passages]
        prompts = self._many_tokens(texts)
        for at, passage in enumerate(passages):
            cancel.check()
            if len(prompts[at]) > limit:
                prompts[at] = read(self._cut(passage, limit, read))
        probabilities = [0.0] * len(passages)
        for chosen in by_length([len(prompt) + len(prefix) for prompt in prompts], self._batch_tokens):
            rows = [Prompt((prompts[at] + prefix,)) for at in chosen]
            log_probs = self._decoder.next_log_probs(self._inputs(rows, cancel, verdicts.prefix), cancel)
            true, false = log_probs[:, verdicts.true].double(), log_probs[:, verdicts.false].double()
            values = true.exp() if normalization is Normalization.VOCABULARY else torch.sigmoid(true - false)
            for at, value in zip(chosen, values.clamp(0.0, 1.0).tolist(), strict=True):
                probabilities[at] = value
        return probabilities

    # What the model reads.

    def _prompt(self, request: GenerationRequest) -> Prompt:
        augmentation = request.augmentation or self._description.augmentations[0]
        template = self._templates.suiting(request.template or self._defaults[augmentation], augmentation)
        limit = self._description.max_input_tokens
        if not self._encodes:
            limit -= request.decoding.max_new_tokens
        question, passages = request.question, request.passages

        def read(*shown: Passage) -> tuple[int, ...]:
            return self._prompt_tokens(template.render(question, shown))

        if augmentation is Augmentation.FUSION_IN_DECODER:
            rows = []
            for passage in passages:
                row = read(passage)
                rows.append(row if len(row) <= limit else read(self._cut(passage, limit, read)))
            return Prompt(tuple(rows))
        kept = most_passages(passages, lambda shown: len(read(*shown)) <= limit)
        shown = passages[:kept]
        if passages and not kept:
            shown = (self._cut(passages[0], limit, read),)
        row = read(*shown)
        if len(row) > limit:
            raise self._question_too_long(len(row), limit)
        return Prompt((row,), len(passages) - len(shown))

    def _cut(self, passage: Passage, limit: int, read: Any) -> Passage:
        """The passage cut to what fits beside the question."""
        cut = cut_to_fit(passage, lambda shown: len(read(shown)) <= limit)
        if cut is None:
            # Not one word fits: the title alone may, or the question is what is too long.
            cut = Passage(passage.id, passage.title, "")
            if (length := len(read(cut))) > limit:
                raise self._question_too_long(length, limit)
        return cut

    def _question_too_long(self, length: int, limit: int) -> InvalidField:
        return InvalidField(
            "question", f"makes a prompt of {length} tokens; {self._description.name} reads at most {limit}"
        )

    def _prompt_tokens(self, text: str) -> tuple[int, ...]:
        if not self._chats:
            return self._tokens(text)
        chat = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        with self._tokenizer_lock:
            return tuple(self._tokenizer(chat, add_special_tokens=False, verbose=False).input_ids)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return self._many_tokens([text])[0]

    def _many_tokens(self, texts: list[str]) -> list[tuple[int, ...]]:
        # The limit is ours to keep, by whole passages; the tokenizer's own would cut the end of the prompt.
        with self._tokenizer_lock:
            rows = self._tokenizer(texts, truncation=False, verbose=False).input_ids
        return [tuple(row) for row in rows]

    # What the model computes on.

    def _inputs(
        self, prompts: Sequence[Prompt], cancel: Cancellation, prefix: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Keyword arguments of ``generate``; ``prefix``: what an encoder–decoder has already written."""
        if not self._encodes:
            input_ids, mask = self._padded([prompt.rows[0] for prompt in prompts], left=True)
            return {"input_ids": input_ids, "attention_mask": mask}
        states, mask = self._encoded(prompts, cancel)
        start = torch.tensor([(*self._start[:1], *prefix)], device=self._model.device)
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=states),
            "attention_mask": mask,
            "decoder_input_ids": start.repeat(len(prompts), 1),
        }

    @torch.inference_mode()
    def _encoded(self, prompts: Sequence[Prompt], cancel: Cancellation) -> tuple[Tensor, Tensor]:
        """Encoder states [B, S, H] of each prompt's rows, side by side without gaps, and their mask."""
        encoder = self._model.get_encoder()
        rows = [row for prompt in prompts for row in prompt.rows]
        states: list[Tensor] = [torch.empty(0)] * len(rows)
        for chosen in by_length([len(row) for row in rows], self._batch_tokens):
            cancel.check()
            input_ids, mask = self._padded([rows[at] for at in chosen], left=False)
            hidden = encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
            for place, at in enumerate(chosen):
                states[at] = hidden[place, : len(rows[at])]
        whole: list[Tensor] = []
        begin = 0
        for prompt in prompts:
            whole.append(torch.cat(states[begin : begin + len(prompt.rows)]))
            begin += len(prompt.rows)
        lengths = torch.tensor([len(one) for one in whole], device=self._model.device)
        side_by_side = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
        mask = torch.arange(side_by_side.shape[1], device=lengths.device) < lengths[:, None]
        return side_by_side, mask.long()

    def _padded(self, rows: Sequence[tuple[int, ...]], *, left: bool) -> tuple[Tensor, Tensor]:
        side = "left" if left else "right"
        tensors = [torch.tensor(row) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(
            tensors, batch_first=True, padding_value=self._pad, padding_side=side
        )
        mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side
        )
        return ids.to(self._model.device), mask.to(self._model.device)

    # What the model wrote.

    def _answer(self, prompt: Prompt, written: Written, text: str | None = None) -> Answer:
        return Answer(
            text=self._decode(written.text_ids) if text is None else text,
            finish_reason=FinishReason.STOP if written.ended else FinishReason.LENGTH,
            prompt_tokens=prompt.tokens,
            completion_tokens=written.tokens,
            log_probability=min(written.log_probability, 0.0),
            dropped_passages=prompt.dropped_passages,
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    # What the model is.

    def _default_template(self) -> str:
        if self._encodes:
            return "ra-x"
        return "eor-retrieval-augmented-llama2-chat" if self._chats else "rankrag-answer"

    def _augmentations(self, instruction: bool) -> tuple[Augmentation, ...]:
        can = [Augmentation.IN_PROMPT]
        if self._encodes:
            can.append(Augmentation.FUSION_IN_DECODER)
        can.append(Augmentation.RETRIEVAL_FREE)
        if instruction:
            can += [Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION]
        return tuple(can)

    def _most_input(self, setting: int | None) -> int:
        config = self._model.config.get_text_config()
        most = setting
        if most is None:
            named = (getattr(config, "n_positions", None), self._tokenizer.model_max_length)
            # A tokenizer without a limit says so with a huge number.
            most = min((limit for limit in named if limit and limit < 2**31), default=_UNBOUNDED_INPUT)
        positions = getattr(config, "max_position_embeddings", None)
        return int(min(most, positions) if positions else most)

    def _most_new(self, most_input: int) -> int:
        if not self._encodes:
            return min(_MOST_NEW_TOKENS, most_input - 1)
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return min(_MOST_NEW_TOKENS, positions - 1) if positions else _MOST_NEW_TOKENS

    def _find_verdicts(self) -> Verdicts | None:
        if self._encodes:
            true, false = (
                tuple(self._tokenizer(text_target=word, verbose=False).input_ids)
                for word in ("True", "False")
            )
        else:
            # As the word stands behind the prompt: with the space, and whatever the tokenizer makes of it.
            prompt, true, false = self._many_tokens(["Assistant:", "Assistant: True", "Assistant: False"])
            shared = _shared(_shared(prompt, true), false)
            true, false = true[len(shared) :], false[len(shared) :]
        prefix = _shared(true, false)
        if len(prefix) >= min(len(true), len(false)):
            return None
        pair = Verdicts(prefix, true[len(prefix)], false[len(prefix)])
        unknown = self._tokenizer.unk_token_id
        return None if unknown is not None and unknown in (pair.true, pair.false) else pair


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens with which both begin."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    return () if value is None else (value,) if isinstance(value, int) else tuple(value)
