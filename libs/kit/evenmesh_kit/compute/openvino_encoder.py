"""Compute a transformers encoder on processors with OpenVINO, at about twice PyTorch's speed.

Needs ``torch`` and ``transformers``, which the caller has loaded the model with; ``openvino`` is optional.

What lies behind the word embeddings is converted once, kept (:mod:`evenmesh_kit.compute.conversions`) and
compiled at each start. Word embeddings and heads stay in PyTorch: embeddings may grow while a service runs,
and heads want float32.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.model_files import one_line
from evenmesh_kit.compute.openvino_runtime import CompiledModel, core, package
from evenmesh_kit.compute.placement import LOADING

POOLER: Final = "pooler"
"""Name of the part of an encoder that is a head: it is not converted."""

_FORMAT: Final = "1"
"""Raise it when the same model is converted to something else than before."""
_FILE: Final = "layers.xml"
_TRACED: Final = (7, 2)
"""Tokens and rank of what is traced; any would do."""
_PROBED: Final = (3, 28)
"""Tokens of the rows that are compared with PyTorch's. Not the traced number."""
_LEAST_COSINE: Final = {False: 0.9999, True: 0.99}
"""To PyTorch's states, by whether it is bfloat16; a wrong conversion is far below."""
_RANKS: Final = 4
"""Ranks of changes are rounded up to multiples of this, so that there are few shapes."""


class LayerChanges:
    """Low-rank changes (LoRA; Hu et al. 2022) of an encoder's layers, as :class:`OpenVinoEncoder` reads them.

    Args:
        layers: inputs and outputs of all linear layers by name, in the encoder's order.
        pairs: by layer, A of shape [rank, inputs] and B of shape [outputs, rank], float32: its output y for
            input x becomes y + B A x.
    """

    def __init__(
        self, layers: Mapping[str, tuple[int, int]], pairs: Mapping[str, tuple[Tensor, Tensor]]
    ) -> None:
        most = max((down.shape[0] for down, _ in pairs.values()), default=1)
        rank = -(-most // _RANKS) * _RANKS
        # A layer that is not changed reads zeros, which all of its size share.
        zeros = {size: np.zeros(size, np.float32) for pair in layers.values() for size in _shapes(pair, rank)}
        self.arrays: list[NDArray[np.float32]] = []
        for name, sizes in layers.items():
            down_shape, up_shape = _shapes(sizes, rank)
            if name not in pairs:
                self.arrays += [zeros[down_shape], zeros[up_shape]]
                continue
            down, up = (one.detach().float() for one in pairs[name])
            missing = rank - down.shape[0]
            self.arrays.append(functional.pad(down, (0, 0, 0, missing)).contiguous().numpy())
            self.arrays.append(functional.pad(up, (0, missing)).contiguous().numpy())


class OpenVinoEncoder:
    """The layers of an encoder, compiled; many threads may use it.

    It computes each row alone and at its own length. So nothing is padded, and a row's states are the same to
    the bit whatever else is in its batch, however long the others are and however many threads compute.
    A row is computed on one processor, by the thread that asks.

    Args:
        base: an encoder of transformers on the CPU, in float32, without a head.
        bfloat16: whether matrices are multiplied in bfloat16.
        parallel: most rows computed at a time; further threads wait. [1, inf).
        conversions: keeps the converted model.

    Raises:
        EngineError: OpenVINO is not installed, cannot convert the model, or computes something else
            than PyTorch does.
    """

    def __init__(self, base: Any, *, bfloat16: bool, parallel: int, conversions: Conversions) -> None:
        self.parallel = parallel
        self._base = base
        self._bfloat16 = bfloat16
        self._conversions = conversions
        self._layers = {
            name: (one.in_features, one.out_features)
            for name, one in base.named_modules()
            if isinstance(one, nn.Linear) and name.partition(".")[0] != POOLER
        }
        self._reads_types = reads_types(base)
        self._weights = _digest_of(base)
        self._compiling = Lock()
        self._changeable: CompiledModel | None = None
        self._reload: Callable[[], Any] | None = lambda: base
        self._plain = self._compiled(changeable=False)
        self._check()

    def changes(self, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> LayerChanges:
        """Return changes of layers, by their names in the encoder, for :meth:`states`."""
        return LayerChanges(self._layers, pairs)

    def prepare_changes(self) -> None:
        """Compile what computes with changes of layers, unless it is compiled; this takes seconds.

        Raises:
            EngineError: OpenVINO cannot convert the model.
        """
        self._for_changes()

    def states(
        self, embedded: Tensor, types: Tensor | None = None, changes: LayerChanges | None = None
    ) -> Tensor:
        """Return the last hidden states of one row.

        Args:
            embedded: embeddings of its tokens' words, without padding, float32, ``[tokens, hidden]``.
            types: segment of each token, ``[tokens]``; None for segment 0.
            changes: changes of layers; the first wait for :meth:`prepare_changes`.

        Returns:
            float32, ``[tokens, hidden]``.
        """
        inputs: list[NDArray[Any]] = [embedded.detach()[None].contiguous().numpy()]
        if self._reads_types:
            kinds = torch.zeros(len(embedded), dtype=torch.long) if types is None else types
            inputs.append(kinds[None].contiguous().numpy())
        if changes is None:
            return torch.from_numpy(self._plain(inputs))[0]
        return torch.from_numpy(self._for_changes()([*inputs, *changes.arrays]))[0]

    def batch(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the last hidden states of a padded batch, each row computed alone.

        Args:
            ids: token ids, ``[rows, tokens]``.
            mask: 1 for tokens, 0 for padding, on either side; ``[rows, tokens]``.
            types: segments, ``[rows, tokens]``; None for segment 0.

        Returns:
            float32, ``[rows, tokens, hidden]``; zeros for padding.
        """
        embedded: Tensor = self._base.get_input_embeddings()(ids).float()
        found = torch.zeros_like(embedded)
        for row, chosen in enumerate(mask.bool()):
            found[row, chosen] = self.states(
                embedded[row, chosen], None if types is None else types[row, chosen]
            )
        return found

    def release(self, reload: Callable[[], Any] | None = None) -> None:
        """Free the weights of what was converted in ``base``: it cannot compute any more.

        Embeddings of words and the head stay.

        Args:
            reload: loads the encoder again, for the conversion that reads changes of layers; None where no
                changes come.
        """
        self._reload = reload
        words = self._base.get_input_embeddings()
        for name, child in self._base.named_children():
            if name != POOLER and all(one is not words for one in child.modules()):
                child.to("meta")

    def _for_changes(self) -> CompiledModel:
        with self._compiling:
            if self._changeable is None:
                self._changeable = self._compiled(changeable=True)
            return self._changeable

    def _compiled(self, *, changeable: bool) -> CompiledModel:
        openvino = package()
        key = hashlib.sha256(
            repr(
                (
                    _FORMAT,
                    openvino.__version__,
                    torch.__version__,
                    transformers.__version__,
                    self._weights,
                    changeable,
                )
            ).encode()
        ).hexdigest()[:32]
        try:
            try:
                folder = self._conversions.find(key, partial(self._write, changeable))
                model = core().read_model(folder / _FILE)
            except OSError:  # no room, or a disk that is read only
                model = self._converted(changeable)
            return CompiledModel(model, bfloat16=self._bfloat16, parallel=self.parallel)
        except Exception as error:
            raise EngineError(f"OpenVINO cannot convert the model: {one_line(error)}") from error

    def _write(self, changeable: bool, folder: Path) -> None:
        package().save_model(self._converted(changeable), folder / _FILE, compress_to_fp16=False)

    def _converted(self, changeable: bool) -> Any:
        if self._reload is None:
            raise EngineError("its weights were released")
        return converted_layers(self._reload(), self._layers if changeable else {})

    def _check(self) -> None:
        """Compare with PyTorch."""
        for tokens in _PROBED:
            try:
                cosine = self._cosine(tokens)
            except Exception as error:
                raise EngineError(f"OpenVINO cannot compute the model: {one_line(error)}") from error
            if not cosine >= _LEAST_COSINE[self._bfloat16]:
                raise EngineError(
                    "OpenVINO does not compute what PyTorch does: the states of "
                    f"{tokens} tokens have a cosine of {cosine:.4f}"
                )

    def _cosine(self, tokens: int) -> float:
        """Return the cosine of the states of drawn tokens to PyTorch's."""
        words = self._base.get_input_embeddings()
        # The last of a vocabulary are words; padding and other marks are among the first.
        ids = torch.randint(
            len(words.weight) // 2,
            len(words.weight),
            (1, tokens),
            generator=torch.Generator().manual_seed(tokens),
        )
        with torch.inference_mode():
            wanted: Tensor = self._base(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            found = self.states(words(ids)[0])
        return float(functional.cosine_similarity(found.flatten(), wanted.float().flatten(), dim=0))


def reads_types(base: Any) -> bool:
    """Return whether an encoder of transformers reads the segment of each token."""
    return "token_type_ids" in inspect.signature(base.forward).parameters


def converted_layers(base: Any, changed: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> Any:
    """Return an ``openvino.Model`` of what lies behind an encoder's word embeddings.

    It reads the embeddings, float32 ``[1, tokens, hidden]``; the segments, int64 ``[1, tokens]``, if the
    encoder :func:`reads_types`; and A and B of each changed layer (see :class:`LayerChanges`). It returns the
    last hidden states, ``[1, tokens, hidden]``.

    Args:
        base: an encoder of transformers on the CPU, in float32, without a head.
        changed: inputs and outputs of the linear layers that changes are added to, by their names.

    Raises:
        EngineError: OpenVINO is not installed.
        Exception: OpenVINO cannot convert the encoder.
    """
    tokens, rank = _TRACED
    hidden = base.get_input_embeddings().embedding_dim
    example = [torch.randn(1, tokens, hidden)]
    shapes = [[1, -1, hidden]]
    types = reads_types(base)
    if types:
        example.append(torch.zeros(1, tokens, dtype=torch.long))
        shapes.append([1, -1])
    for sizes in changed.values():
        (_, inputs), (outputs, _) = both = _shapes(sizes, rank)
        example += [torch.randn(shape) for shape in both]
        shapes += [[-1, inputs], [outputs, -1]]
    return converted(_Layers(base, tuple(changed), reads_types=types), example, shapes)


def converted(module: nn.Module, example: Sequence[Tensor], shapes: Sequence[list[int]]) -> Any:
    """Return an ``openvino.Model`` of a module.

    Args:
        module: reads and returns tensors.
        example: what it is traced with.
        shapes: shape of each input; -1 for any size.

    Raises:
        EngineError: OpenVINO is not installed.
        Exception: OpenVINO cannot convert the module.
    """
    # It changes the model and functions of PyTorch meanwhile, and warns of what its caller checks.
    with LOADING, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = package().convert_model(module.eval(), example_input=tuple(example))
    model.reshape(dict(enumerate(shapes)))
    return model


class _Layers(nn.Module):
    """What is converted: from the embeddings of words to the last hidden states, with changes as inputs."""

    def __init__(self, base: nn.Module, changed: Sequence[str], *, reads_types: bool) -> None:
        super().__init__()
        self._base = base
        self._changed = changed
        self._reads_types = reads_types

    def forward(self, embedded: Tensor, *others: Tensor) -> Tensor:
        """Return the last hidden states; a row without padding needs no mask."""
        left = list(others)
        types = {"token_type_ids": left.pop(0)} if self._reads_types else {}
        modules = dict(self._base.named_modules())
        with ExitStack() as hooks:
            for name in self._changed:
                hook = partial(_changed, left.pop(0), left.pop(0))
                hooks.callback(modules[name].register_forward_hook(hook).remove)
            states: Tensor = self._base(inputs_embeds=embedded, **types).last_hidden_state
        return states


def _changed(down: Tensor, up: Tensor, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output + functional.linear(functional.linear(given[0], down), up)


def _shapes(sizes: tuple[int, int], rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of A and B of a layer of so many inputs and outputs."""
    inputs, outputs = sizes
    return (rank, inputs), (outputs, rank)


def _digest_of(base: Any) -> str:
    """Return the hash of an encoder without its word embeddings, which are not converted."""
    words = base.get_input_embeddings().weight
    digest = hashlib.sha256(f"{base.config.to_json_string()} {base.config._attn_implementation}".encode())
    for name, tensor in sorted(base.state_dict(keep_vars=True).items()):
        if tensor is not words:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
