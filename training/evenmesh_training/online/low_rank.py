"""Low-rank adapters (LoRA; Hu et al. 2022) while they are trained.

Not peft, which wraps layers and renames them: these are the tensors that serving adds, under the names of
``adapter.safetensors``, so that serving computes what was trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenmesh_reranker.backends.adapters import LowRankAdapter


def fresh(model: Any, *, layers: str, rank: int, seed: int) -> LowRankAdapter:
    """Return an adapter that changes nothing yet: A is random, B is zero (Hu et al. 2022, section 4.1).

    Args:
        model: a transformers model.
        layers: regular expression; layers whose name contains a match are changed.
        rank: of the adapter, at most the smaller side of a layer, [1, inf).
        seed: of A.

    Raises:
        ValueError: no linear layer has such a name.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and re.search(layers, name):
            most = min(rank, layer.in_features, layer.out_features)
            down = torch.randn(most, layer.in_features, generator=generator) / layer.in_features**0.5
            device = layer.weight.device
            pairs[name] = down.to(device), torch.zeros(layer.out_features, most, device=device)
    if not pairs:
        raise ValueError(f"no linear layer of the model has a name that matches {layers!r}")
    return LowRankAdapter("", pairs)


@contextmanager
def trainable(model: Any, adapter: LowRankAdapter) -> Iterator[None]:
    """Compute with an adapter within the block, and let only its tensors be trained, in place.

    Args:
        model: a transformers model; restored afterwards.
        adapter: changes of its layers.
    """
    layers: dict[str, nn.Module] = dict(model.named_modules())
    frozen = [one for one in model.parameters() if one.requires_grad]
    with ExitStack() as after:
        for one in frozen:
            one.requires_grad_(False)
            after.callback(one.requires_grad_, True)
        for name, (down, up) in adapter.pairs.items():
            layer = layers[name]
            for key, tensor in (("lora_A", down), ("lora_B", up)):
                layer.register_parameter(key, nn.Parameter(tensor))
                after.callback(delattr, layer, key)
            after.callback(layer.register_forward_hook(_add).remove)
        yield


def fold(model: Any, adapter: LowRankAdapter) -> None:
    """Add an adapter's changes to a model's own weights."""
    layers: dict[str, Any] = dict(model.named_modules())
    with torch.no_grad():
        for name, (down, up) in adapter.pairs.items():
            weight: Tensor = layers[name].weight
            weight += (up @ down).to(weight)


def copy(adapter: LowRankAdapter) -> LowRankAdapter:
    """Return a copy of an adapter in its own memory."""
    pairs = {name: (down.clone(), up.clone()) for name, (down, up) in adapter.pairs.items()}
    return LowRankAdapter(adapter.version, pairs, adapter.fusion)


def _add(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    down, up = layer.get_parameter("lora_A"), layer.get_parameter("lora_B")
    return output + functional.linear(functional.linear(args[0], down), up)
