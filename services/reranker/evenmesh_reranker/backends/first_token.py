"""Find out whether a cross-encoder needs its last layer for the first token alone."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor

from evenmesh_kit.compute.first_token import has_known_last_layer, last_layer_of_first_token

_LENGTHS: Final = (9, 5, 2, 7)
"""Lengths of the rows that are tried. Tokens."""


def needs_first_token_alone(encoder: CrossEncoder) -> bool:
    """Return whether the scores are the same when the last layer gives the first token's state alone.

    It tries rows of drawn tokens, padded: a head may read all states, or a model may compute its attention in
    another way under the names of BERT's.

    Args:
        encoder: a cross-encoder in float32.
    """
    model = cast(Any, encoder.model)
    base: Any = getattr(model, model.base_model_prefix, None)
    if encoder.tokenizer.padding_side == "left" or not has_known_last_layer(base):
        return False
    vocabulary = len(base.get_input_embeddings().weight)
    generator = torch.Generator().manual_seed(0)
    # The last of a vocabulary are words; padding and other marks are among the first.
    ids = torch.randint(vocabulary // 2, vocabulary, (len(_LENGTHS), max(_LENGTHS)), generator=generator)
    mask = torch.tensor([[int(at < length) for at in range(max(_LENGTHS))] for length in _LENGTHS])
    with torch.inference_mode():
        try:
            states, logits = _computed(encoder, base, ids, mask)
            with last_layer_of_first_token(base):
                first, same = _computed(encoder, base, ids, mask)
        except (RuntimeError, IndexError, TypeError):
            return False
    return all(
        one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        for one, other in ((states[:, :1], first), (logits, same))
    )


def _computed(encoder: CrossEncoder, base: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    features = {"input_ids": ids.to(encoder.device), "attention_mask": mask.to(encoder.device)}
    return base(**features).last_hidden_state, encoder(features)["scores"]
