"""Compute the head of a cross-encoder in float32, whatever number type its layers have.

A model that learned from feedback gives most passages nearly the same logit. In the eight bits of bfloat16
these would become equal, and their order random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def head(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a transformers model that are in none of its stacks of layers."""
    stacked = {
        id(one) for stack in model.modules() if isinstance(stack, nn.ModuleList) for one in stack.modules()
    }
    return [one for one in model.modules() if isinstance(one, nn.Linear) and id(one) not in stacked]


@contextmanager
def exact(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Compute these layers in float32 within the block, under autocast too."""
    patched: list[Any] = list(layers)
    for one in patched:
        one.forward = partial(_in_float32, one)
    try:
        yield
    finally:
        for one in patched:
            del one.forward


def _in_float32(layer: nn.Linear, given: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.float()
    with torch.autocast(given.device.type, enabled=False):
        return nn.functional.linear(given.float(), layer.weight.float(), bias)
