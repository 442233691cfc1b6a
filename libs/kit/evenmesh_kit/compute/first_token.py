"""Compute an encoder's last layer for the first token alone, where nothing reads the states of the others.

The classifier of a BERT reads one state, that of ``[CLS]``. In the last layer the other tokens are only
attended to: their keys and values are needed, but no query, no output of the attention and no feed-forward
network, which are ten twelfths of the layer's products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional


def has_known_last_layer(base: Any) -> bool:
    """Return whether an encoder's last layer has the parts of BERT's, as those of RoBERTa and ELECTRA do."""
    try:
        layer = base.encoder.layer[-1]
        own, output = layer.attention.self, layer.attention.output
        parts = (own.query, own.key, own.value, own.attention_head_size, output.dense, layer.intermediate)
    except (AttributeError, IndexError, TypeError):
        return False
    return all(part is not None for part in parts)


@contextmanager
def last_layer_of_first_token(base: Any) -> Iterator[None]:
    """Let an encoder return the states of the first tokens alone, ``[rows, 1, hidden]``, within the block.

    Args:
        base: an encoder that :func:`has_known_last_layer`.
    """
    attention = base.encoder.layer[-1].attention
    attention.forward = partial(_of_first_token, attention, attention.forward)
    try:
        yield
    finally:
        del attention.forward


def _of_first_token(
    attention: Any, whole: Any, states: Tensor, mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, Any]:
    if mask is not None and mask.dim() != 4:  # of an attention that packs rows, which takes other arguments
        found, weights = whole(states, mask, **options)
        return found[:, :1], weights
    own, first = attention.self, states[:, :1]

    def heads(projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:-1], -1, own.attention_head_size).transpose(1, 2)

    found = functional.scaled_dot_product_attention(
        heads(own.query(first)),
        heads(own.key(states)),
        heads(own.value(states)),
        None if mask is None else mask[:, :, :1],
    )
    return attention.output(found.transpose(1, 2).flatten(2), first), None
