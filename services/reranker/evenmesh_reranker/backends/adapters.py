"""Low-rank adapters of linear layers (LoRA; Hu et al. 2022), applied row by row within one batch.

A file ``adapter.safetensors`` holds, for each changed ``nn.Linear`` by its name in the transformers model,
``<name>.lora_A`` of shape [rank, inputs] and ``<name>.lora_B`` of shape [outputs, rank]; the layer's output y
for input x becomes y + B A x. A trainer that scales by alpha / rank writes B scaled.

An adapter may have a fusion (:mod:`evenmesh_reranker.models.fusions`), and may change no layer besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_reranker.domain import Fusion
from evenmesh_reranker.models import fusions

FILE: Final = "adapter.safetensors"
"""Name of the file in an adapter's version."""

_A: Final = ".lora_A"
_B: Final = ".lora_B"


@dataclass(frozen=True, eq=False)
class LowRankAdapter:
    """Changes of linear layers.

    Attributes:
        version: version of the changes.
        pairs: by layer, A of shape [rank, inputs] and B of shape [outputs, rank]; empty if no layer changes.
        fusion: how scores are fused with those of a first stage; None: as the model says.
    """

    version: str
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    fusion: Fusion | None = None

    @property
    def size(self) -> int:
        """Size in memory. Bytes."""
        return sum(one.numel() * one.element_size() for pair in self.pairs.values() for one in pair)

    def save(self, folder: Path) -> None:
        """Write the adapter into a folder."""
        tensors = {}
        for name, (down, up) in self.pairs.items():
            tensors[name + _A], tensors[name + _B] = down.contiguous(), up.contiguous()
        save_file(tensors, folder / FILE)
        if self.fusion is not None:
            fusions.write(self.fusion, folder)

    @classmethod
    def load(cls, folder: Path, version: str, model: Any, device: torch.device) -> LowRankAdapter:
        """Return the adapter in a folder, for a transformers model.

        Raises:
            ModelError: it cannot be read, or does not fit the model.
        """
        try:
            tensors: dict[str, Tensor] = load_file(folder / FILE, device=str(device))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"the adapter {version} cannot be loaded: {one_line(error)}") from None
        layers = dict(model.named_modules())
        pairs = {}
        for key, down in tensors.items():
            if key.endswith(_B):
                continue
            name = key.removesuffix(_A)
            layer, up = layers.get(name), tensors.get(name + _B)
            if not key.endswith(_A) or up is None or not isinstance(layer, nn.Linear):
                raise ModelError(f"the adapter {version} changes {key}, which is no linear layer of its base")
            if down.shape != (up.shape[1], layer.in_features) or up.shape[0] != layer.out_features:
                raise ModelError(f"the adapter {version} has another shape than {name} of its base")
            pairs[name] = (down, up)
        if len(tensors) != 2 * len(pairs):
            raise ModelError(f"the adapter {version} has changes without their other half")
        return cls(version, pairs, fusions.read(folder))


@contextmanager
def applied(model: Any, adapters: Sequence[LowRankAdapter | None]) -> Iterator[None]:
    """Compute row i of a batch with ``adapters[i]`` within the block.

    Args:
        model: a transformers model whose layers have the batch as their first dimension.
        adapters: one for each row; None for none.
    """
    distinct = list({id(one): one for one in adapters if one is not None}.values())
    with ExitStack() as hooks:
        if distinct:
            layers = dict(model.named_modules())
            places = {id(one): at for at, one in enumerate(distinct)}
            # The last place has zeros: no changes.
            index = [places.get(id(one), len(distinct)) for one in adapters]
            for name in sorted({name for one in distinct for name in one.pairs}):
                down, up = _stacked(layers[name], name, distinct)
                chosen = torch.tensor(index, device=down.device)
                handle = layers[name].register_forward_hook(_hook(down[chosen], up[chosen]))
                hooks.callback(handle.remove)
        yield


def _stacked(layer: nn.Linear, name: str, adapters: Sequence[LowRankAdapter]) -> tuple[Tensor, Tensor]:
    """Return A and B of a layer for all adapters, zeros where one has none, and one more pair of zeros."""
    rank = max(one.pairs[name][0].shape[0] for one in adapters if name in one.pairs)
    weight = layer.weight
    # Adapters are in float32, whatever the layer's weights were converted to.
    down = weight.new_zeros((len(adapters) + 1, rank, layer.in_features), dtype=torch.float32)
    up = weight.new_zeros((len(adapters) + 1, layer.out_features, rank), dtype=torch.float32)
    for at, one in enumerate(adapters):
        if name in one.pairs:
            a, b = one.pairs[name]
            down[at, : a.shape[0]] = a
            up[at, :, : b.shape[1]] = b
    return down, up


def _hook(down: Tensor, up: Tensor) -> Any:
    def change(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inner = torch.einsum("n...i,nri->n...r", args[0], down.to(args[0].dtype))
        return output + torch.einsum("n...r,nor->n...o", inner, up.to(inner.dtype)).to(output.dtype)

    return change
