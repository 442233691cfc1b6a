"""Convert the layers of a transformers encoder, and heads, for OpenVINO.

Needs ``torch``, ``transformers`` and ``openvino``. Word embeddings are left out: they may grow while a
service runs.
"""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.first_token import last_layer_of_first_token
from evenmesh_kit.compute.model_files import one_line
from evenmesh_kit.compute.openvino_runtime import change_shapes, package
from evenmesh_kit.compute.placement import LOADING

POOLER: Final = "pooler"
"""Name of the part of an encoder that is a head: it is not converted with its layers."""

FEWEST: Final = 2
"""Fewest tokens of a row that a converted encoder computes rightly."""
TRACED: Final = 7
"""Tokens of what is traced; any would do."""
_RANK: Final = 2
"""Rank of the changes that are traced; any would do."""


def linear_layers(base: nn.Module) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of an encoder's linear layers by name, in its order, without its head's."""
    return {
        name: (one.in_features, one.out_features)
        for name, one in base.named_modules()
        if isinstance(one, nn.Linear) and name.partition(".")[0] != POOLER
    }


def reads_types(base: Any) -> bool:
    """Return whether an encoder of transformers reads the segment of each token."""
    return "token_type_ids" in inspect.signature(base.forward).parameters


def convert_layers(
    base: Any,
    file: Path,
    changed: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    *,
    first_token: bool = False,
) -> None:
    """Write what lies behind an encoder's word embeddings as a model of OpenVINO.

    It reads the embeddings, float32 ``[rows, tokens, hidden]``; a mask, int64 ``[rows, tokens]``, 1 for
    tokens and 0 for the padding behind them; the segments, int64 ``[rows, tokens]``, if the encoder
    :func:`reads_types`; and A and B of each changed layer, as
    :class:`evenmesh_kit.compute.openvino_runtime.LayerChanges` has them. It returns the last hidden states,
    ``[rows, tokens, hidden]``, or that of the first token alone. Whoever computes a row of one token with it
    first gets the position of that token for all tokens from then on (OpenVINO 2026.4): rows must have
    :data:`FEWEST` tokens.

    Args:
        base: an encoder of transformers on the CPU, in float32, without a head.
        file: where to, its name ends with ``.xml``.
        changed: inputs and outputs of the linear layers that changes are added to, by their names.
        first_token: whether the last layer is computed for the first token alone; see
            :mod:`evenmesh_kit.compute.first_token`.

    Raises:
        EngineError: OpenVINO is not installed, or cannot convert the encoder.
    """
    hidden, types = base.get_input_embeddings().embedding_dim, reads_types(base)
    example, shapes = traced_rows(hidden, types=types)
    more, theirs = change_inputs(changed)
    layers = _Layers(base, tuple(changed), reads_types=types, first_token=first_token)
    convert(layers, example + more, shapes + theirs, file)


def traced_rows(hidden: int, *, types: bool) -> tuple[list[Tensor], list[list[int]]]:
    """Return what layers are traced with, and the shapes of it; -1 for any size.

    Args:
        hidden: size of an embedding.
        types: whether they read segments.
    """
    mask = torch.ones(2, TRACED, dtype=torch.long)
    mask[0, -1] = 0
    example, shapes = [torch.randn(2, TRACED, hidden), mask], [[-1, -1, hidden], [-1, -1]]
    if types:
        example.append(torch.zeros(2, TRACED, dtype=torch.long))
        shapes.append([-1, -1])
    return example, shapes


def change_inputs(changed: Mapping[str, tuple[int, int]]) -> tuple[list[Tensor], list[list[int]]]:
    """Return what A and B of changed layers are traced with, and their shapes; -1 for any size."""
    example, shapes = [], []
    for sizes in changed.values():
        (_, inputs), (outputs, _) = both = change_shapes(sizes, _RANK)
        example += [torch.randn(shape) for shape in both]
        shapes += [[-1, inputs], [outputs, -1]]
    return example, shapes


def convert(module: nn.Module, example: Sequence[Tensor], shapes: Sequence[list[int]], file: Path) -> None:
    """Write a module as a model of OpenVINO.

    Args:
        module: reads and returns tensors.
        example: what it is traced with.
        shapes: shape of each input; -1 for any size.
        file: where to, its name ends with ``.xml``.

    Raises:
        EngineError: OpenVINO is not installed, or cannot convert the module.
    """
    openvino = package()
    collects = gc.isenabled()
    # Constants of a model that is not on disk lie in memory of what it was traced with, and that ends when
    # Python next looks for cycles (OpenVINO 2026.4): until then it must be on disk.
    gc.disable()
    try:
        # It changes the model and functions of PyTorch meanwhile, and warns of what its caller checks.
        with LOADING, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = openvino.convert_model(module.eval(), example_input=tuple(example))
        model.reshape(dict(enumerate(shapes)))
        openvino.save_model(model, file, compress_to_fp16=False)
    except Exception as error:
        raise EngineError(f"OpenVINO cannot convert the model: {one_line(error)}") from error
    finally:
        if collects:
            gc.enable()


class _Layers(nn.Module):
    """What is converted: from the embeddings of words to the last hidden states, with changes as inputs."""

    def __init__(
        self, base: nn.Module, changed: Sequence[str], *, reads_types: bool, first_token: bool
    ) -> None:
        super().__init__()
        self._base = base
        self._changed = changed
        self._reads_types = reads_types
        self._first_token = first_token

    def forward(self, embedded: Tensor, mask: Tensor, *others: Tensor) -> Tensor:
        """Return the last hidden states."""
        left = list(others)
        types = {"token_type_ids": left.pop(0)} if self._reads_types else {}
        shortened = last_layer_of_first_token(self._base) if self._first_token else nullcontext()
        with changes_added(self._base, self._changed, left), shortened:
            found = self._base(inputs_embeds=embedded, attention_mask=mask, **types)
            states: Tensor = found.last_hidden_state
        return states


def changes_added(model: nn.Module, changed: Sequence[str], pairs: Sequence[Tensor]) -> ExitStack:
    """Return a context in which linear layers of a model add their changes.

    Args:
        model: the model.
        changed: names of the layers.
        pairs: A and B of each, one after the other; see
            :class:`evenmesh_kit.compute.openvino_runtime.LayerChanges`.
    """
    modules, left = dict(model.named_modules()), iter(pairs)
    hooks = ExitStack()
    for name in changed:
        hook = partial(_changed, next(left), next(left))
        hooks.callback(modules[name].register_forward_hook(hook).remove)
    return hooks


def _changed(down: Tensor, up: Tensor, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output + functional.linear(functional.linear(given[0], down), up)
