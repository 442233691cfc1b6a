"""The rules that a transformers model's generation settings state."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from evenmesh_generator.runtime.decoding.rules import Rules


def model_rules(model: PreTrainedModel, *, pad: int, ends: Sequence[int]) -> Rules:
    """Return the rules of a model, whose processors are transformers' own.

    The model's settings for sampling are removed: how to draw is the request's choice.

    Args:
        ends: tokens that end an answer.
    """
    settings: Any = model.generation_config
    settings.do_sample = False
    settings.max_length = None
    for unused in ("temperature", "top_p", "top_k", "min_p", "typical_p"):
        setattr(settings, unused, None)
    return Rules(
        pad=pad,
        ends=ends,
        length_penalty=float(1.0 if settings.length_penalty is None else settings.length_penalty),
        early_stopping=settings.early_stopping or False,
        forces_end=settings.forced_eos_token_id is not None,
        made=_Processors(model, pad),
    )


class _Processors:
    """Makes transformers' logits processors of one request."""

    def __init__(self, model: PreTrainedModel, pad: int) -> None:
        self._model: Any = model
        self._pad = pad

    def __call__(
        self, prompt: int, most_tokens: int, rows: int, source: Sequence[int]
    ) -> LogitsProcessorList:
        settings, _ = self._model._prepare_generation_config(
            None, max_new_tokens=most_tokens, num_beams=rows, do_sample=False, pad_token_id=self._pad
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
