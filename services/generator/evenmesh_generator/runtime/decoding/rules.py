"""A model's own rules for its answers: forced and forbidden tokens, least lengths, no repetition."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from evenmesh_kit.compute.placement import upload


class Rules:
    """Makes transformers' own logits processors of one request.

    The model's settings for sampling are left out: how to draw is the request's choice.

    Args:
        ends: tokens that end an answer.
        copying: makes the processor of an answer that is a span, given the tokens before it and the texts
            that it may be copied from; None if the model's answers never are.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad: int,
        ends: Sequence[int],
        copying: Callable[[int, Sequence[Sequence[int]]], LogitsProcessor] | None = None,
    ) -> None:
        self._copying = copying
        self._model: Any = model
        settings = model.generation_config
        settings.do_sample = False
        settings.max_length = None
        for unused in ("temperature", "top_p", "top_k", "min_p", "typical_p"):
            setattr(settings, unused, None)
        self.pad = pad
        self.ends = frozenset(ends)
        self.length_penalty = float(1.0 if settings.length_penalty is None else settings.length_penalty)
        self.early_stopping: bool | str = settings.early_stopping or False
        self.forces_end = settings.forced_eos_token_id is not None
        self.any = bool(self._made(1, 1, 1, (0,)))

    def processors(
        self,
        prompt: int,
        most_tokens: int,
        rows: int,
        source: Sequence[int],
        spans: Sequence[Sequence[int]] | None = None,
    ) -> LogitsProcessorList | None:
        """Return the processors of one request; None if there are no rules for it.

        Args:
            prompt: tokens the answer is written behind.
            most_tokens: longest answer.
            rows: beams.
            source: what the encoder read.
            spans: texts of which the answer must be a span; None: it may be anything.
        """
        made = self._made(prompt, most_tokens, rows, source) if self.any else LogitsProcessorList()
        if spans is not None and self._copying is not None:
            made.append(self._copying(prompt, spans))
        return made or None

    def _made(self, prompt: int, most_tokens: int, rows: int, source: Sequence[int]) -> LogitsProcessorList:
        settings, _ = self._model._prepare_generation_config(
            None, max_new_tokens=most_tokens, num_beams=rows, do_sample=False, pad_token_id=self.pad
        )
        # A model without weights has its rules all the same.
        device = torch.device("cpu") if self._model.device.type == "meta" else self._model.device
        self._model._prepare_special_tokens(settings, True, device=device)
        settings.max_length = prompt + most_tokens
        if settings.min_new_tokens is not None:
            settings.min_length = prompt + settings.min_new_tokens
        mask = torch.ones((rows, prompt), dtype=torch.long, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            processors: LogitsProcessorList = self._model._get_logits_processor(
                settings,
                input_ids_seq_length=prompt,
                encoder_input_ids=torch.tensor([list(source)], device=device),
                device=device,
                model_kwargs={} if self._model.config.is_encoder_decoder else {"attention_mask": mask},
            )
        return processors


@runtime_checkable
class TokenProcessor(Protocol):
    """A logits processor that reads tokens on the host: nothing waits for the device to hand them over."""

    def process(self, ids: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
        """Return scores [B, V] of the next tokens of rows that read ``ids`` so far."""


def apply(processors: LogitsProcessorList, ids: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
    """Return scores [B, V] after the processors of one request, whose rows read ``ids`` so far."""
    rows: Any = None
    for one in processors:
        if isinstance(one, TokenProcessor):
            scores = one.process(ids, scores)
            continue
        if rows is None:
            rows = upload([list(row) for row in ids], scores.device)
        scores = one(rows, scores)
    return scores
