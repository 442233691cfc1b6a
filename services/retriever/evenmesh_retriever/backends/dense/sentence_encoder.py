"""Encode with sentence-transformers: any of its models, and plain transformers with mean pooling.

What a model's folder says of pooling and prompts is used by default. Folders of plain
transformers say nothing: they get the mean of their token vectors, as Contriever was trained, and no prefix,
except those of E5, whose folders do not name their prefixes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

import evenmesh_models
from evenmesh_kit.compute.placement import multiplies_bfloat16
from evenmesh_retriever.backends.dense.model_options import BUNDLED, ModelOptions, Pooling, Precision
from evenmesh_retriever.backends.dense.prefixes import known_prefixes
from evenmesh_retriever.backends.local_encoder import LocalEncoder
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.steps import in_batches

_USUAL_TOKENS: Final = 16
# Names that models give their prompts, the first that is there counts (as sentence-transformers has it).
_QUERY_PROMPTS: Final = ("query",)
_PASSAGE_PROMPTS: Final = ("document", "passage", "corpus")


class SentenceEncoder(LocalEncoder[SentenceTransformer]):
    """A sentence-transformers model whose vectors have length 1.

    Queries are encoded alone, so that what a query gets never depends on what else is asked at the time;
    passages in batches of similar length, which wastes little on padding.

    Args:
        model: :data:`BUNDLED`, the folder of a model, or a name in the local Hugging Face cache; nothing is
            downloaded.
        options: how it reads texts.
        device: ``auto`` (a GPU if PyTorch sees one), ``cpu`` or ``cuda:0``.
        precision: ``bf16`` multiplies matrices in bfloat16 (cosine to fp32 above 0.999), ``auto`` does so
            where the processor has instructions for it.
        threads: PyTorch's threads of one encoding, [1, inf); for the whole process.
        setting: name of the setting ``model`` comes from, for errors.
        batch: most passages that are encoded together; None: 16 on a CPU, any number on a GPU.
        require_gpu: whether the CPU is refused.

    Raises:
        CannotStart: there is no such model or device, or it cannot be loaded.
    """

    UNFIT = "cannot be loaded on {device}"

    def __init__(
        self,
        model: str = BUNDLED,
        options: ModelOptions = ModelOptions(),  # noqa: B008 - it never changes
        *,
        device: str = "auto",
        precision: Precision = "auto",
        threads: int = 1,
        setting: str = "model",
        batch: int | None = None,
        require_gpu: bool = False,
    ) -> None:
        torch.set_num_threads(threads)
        super().__init__(
            SentenceTransformer,
            model,
            _source(model, setting),
            device=device,
            setting=setting,
            batch=batch,
            require_gpu=require_gpu,
        )
        bf16 = precision == "bf16" or (precision == "auto" and multiplies_bfloat16(torch.device(self.device)))
        self.precision = "bf16" if bf16 else "fp32"
        known = known_prefixes(self.name)
        given = options.query_prefix, options.passage_prefix
        self.prompts = (
            _prompt(self.model, _QUERY_PROMPTS) or known[0] if given[0] is None else given[0],
            _prompt(self.model, _PASSAGE_PROMPTS) or known[1] if given[1] is None else given[1],
        )
        """What queries and passages begin with."""
        self._query_prompt, self._passage_prompt = self.prompts
        if options.pooling:
            _pool(self.model, options.pooling, setting)
        modes = [module.pooling_mode for module in self.model if isinstance(module, PoolingModule)]
        self.fingerprint = self._identify(self.prompts, modes)
        if bf16:
            _narrow(self.model)
            if self.device == "cpu" and multiplies_bfloat16(torch.device("cpu")):
                _pack(next(iter(self.model)))
        self.dimension = len(self.encode_query("dimension"))

    def encode_query(self, text: str) -> VectorArray:
        """Return the vector of one query, ``[dimension]``."""
        vector: VectorArray = self.vectors([self._query_prompt + text])[0]
        return vector

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """Return the vectors of passages, ``[len(texts), dimension]``; equal texts are encoded once."""

        def encode(batch: list[str]) -> VectorArray:
            return self.vectors([self._passage_prompt + text for text in batch])

        found = in_batches(texts, self.batch, encode, progress)
        return np.array(found, dtype=np.float32).reshape(-1, self.dimension)

    def vectors(self, texts: Sequence[str]) -> VectorArray:
        """Return the vectors of texts, ``[len(texts), dimension]``, without prompts and in one batch."""
        with self._tokenizer:
            features = self.model.preprocess(texts)
        with torch.inference_mode():
            features = {
                key: value.to(self.device) if isinstance(value, torch.Tensor) else value
                for key, value in features.items()
            }
            pooled = self.model(features)["sentence_embedding"].float()
            vectors: VectorArray = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return vectors


def _source(model: str, setting: str) -> str | os.PathLike[str]:
    """Return where a model is."""
    if model != BUNDLED:
        return model
    try:
        return evenmesh_models.minilm()
    except evenmesh_models.BaseModelError as error:
        raise CannotStart(
            f"{setting}={model!r}: {error}, or set {setting} to the folder of another model"
        ) from None


def _prompt(model: SentenceTransformer, names: Sequence[str]) -> str:
    return next((model.prompts[name] or "" for name in names if name in model.prompts), "")


def _pool(model: SentenceTransformer, pooling: Pooling, setting: str) -> None:
    """Make a model pool another way."""
    for name, module in model.named_children():
        if isinstance(module, PoolingModule):
            dimension = module.embedding_dimension
            model.add_module(name, PoolingModule(dimension, pooling_mode=pooling))
            return
    raise CannotStart(f"{setting}_pooling={pooling!r}: this model does not pool token vectors")


def _narrow(model: SentenceTransformer) -> None:
    """Keep the transformer's weights in bfloat16; what it gives is pooled in float32.

    Autocast would convert the weights for every query anew.
    """

    def widened(_module: torch.nn.Module, _arguments: Any, features: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for key, value in features.items()
        }

    transformer = next(iter(model))
    transformer.to(torch.bfloat16).register_forward_hook(widened)


class _PackedLinear(torch.nn.Module):
    """A linear layer whose weights lie as oneDNN wants them; otherwise they are laid out anew each time.

    A query of a dozen tokens takes two thirds of the time. These are the operations that PyTorch's own
    compiler makes of a linear layer; they are not in its documentation, so who has none goes without.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        operations: Any = torch.ops.mkldnn
        self._packed = operations._reorder_linear_weight(layer.weight.detach(), _USUAL_TOKENS)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        operations: Any = torch.ops.mkldnn
        output: torch.Tensor = operations._linear_pointwise(states, self._packed, self._bias, "none", [], "")
        return output


def _pack(module: torch.nn.Module) -> None:
    """Lay out the weights of all linear layers, where this PyTorch can."""
    if not torch.backends.mkldnn.is_available() or not (  # type: ignore[no-untyped-call]
        hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    ):
        return
    for name, child in module.named_children():
        if type(child) is torch.nn.Linear:
            try:
                packed = _PackedLinear(child)
            except (
                RuntimeError
            ):  # oneDNN may use fewer instructions than the processor has (ONEDNN_MAX_CPU_ISA)
                return
            module.add_module(name, packed)
        else:
            _pack(child)
