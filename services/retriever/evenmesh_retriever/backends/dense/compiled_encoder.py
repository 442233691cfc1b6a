"""Encode on processors with OpenVINO alone: a converted model is served without importing PyTorch.

Only the process that converts a model needs PyTorch (:mod:`evenmesh_retriever.backends.dense.conversion`),
once for each model and version of these libraries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer

import evenmesh_models
from evenmesh_kit.compute import converting, idle_memory
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import EngineError, installed_version
from evenmesh_kit.compute.lengths import CPU_ROWS, alike
from evenmesh_kit.compute.openvino_runtime import (
    CompiledLayers,
    CompiledModel,
    multiplies_bfloat16,
)
from evenmesh_retriever.backends.dense.model_options import BUNDLED, ModelOptions, Precision
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.steps import in_batches

_log = logging.getLogger("evenmesh.retriever.encoder")

CHECKED: Final = ("which lamp?", "", " It is a café\n at Night! [SEP] ", "a front lamp " * 200)
"""Texts that a conversion and each start are compared by."""
LAYERS: Final = "layers.xml"
"""From embeddings of words, a mask and segments where it reads them, to the states of the tokens."""
POOLING: Final = "pooling.xml"
"""From the states to the vector, of any length."""
WORDS: Final = "words.npy"
"""Embeddings of words, float32 ``[vocabulary, hidden]``."""
VECTORS: Final = "vectors.npy"
"""PyTorch's vectors of :data:`CHECKED`, float32 ``[texts, dimension]``."""
TOKENIZER: Final = "tokenizer.json"
ABOUT: Final = "about.json"
"""What else a conversion says of the model, as :class:`CompiledEncoder` reads it."""

_VERSION: Final = "4"
"""Raise it when the same model is converted to something else than before."""
MODULE: Final = "evenmesh_retriever.backends.dense.conversion"
"""What converts a model."""
_LEAST_COSINE: Final = {False: 0.9999, True: 0.99}
"""To PyTorch's vectors, by whether matrices are multiplied in bfloat16; a wrong conversion is far below."""


class NoModelError(Exception):
    """Raised where a model is neither a folder nor in the cache."""


class CompiledEncoder:
    """An :class:`evenmesh_retriever.ports.Encoder` of a converted model.

    The vector of a text is the same to the bit in any company.

    Args:
        model: :data:`BUNDLED`, the folder of a model, or a name in the local Hugging Face cache.
        options: how it reads texts.
        precision: ``bf16`` multiplies matrices in bfloat16, ``auto`` does so where the processor can.
        conversions: keeps the converted model.

    Raises:
        EngineError: OpenVINO cannot compute the model.
        NoModelError: there is no such model.
    """

    device = "cpu"

    def __init__(
        self, model: str, options: ModelOptions, *, precision: Precision = "auto", conversions: Conversions
    ) -> None:
        source = _source(model)
        bfloat16 = precision == "bf16" or (precision == "auto" and multiplies_bfloat16())
        given = {"model": model, "options": options._asdict()}
        folder = converting.conversion(conversions, MODULE, source, given, version=_VERSION)
        self.name = Path(model).name if Path(model).is_dir() else model
        self.precision = "bf16" if bfloat16 else "fp32"
        try:
            about = json.loads((folder / ABOUT).read_bytes())
            self.fingerprint = str(about["fingerprint"])
            self.dimension = int(about["dimension"])
            self.max_tokens = int(about["max_tokens"])
            self._query_prompt, self._passage_prompt = map(str, about["prompts"])
            self._reads_types = bool(about["reads_types"])
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            self._words = np.load(folder / WORDS, mmap_mode="r", allow_pickle=False)
            idle_memory.register(self._words)
            parallel = usable_cores()
            self._layers = CompiledLayers(
                folder / LAYERS, bfloat16=bfloat16, parallel=parallel, most=self.max_tokens
            )
            self._pooling = CompiledModel(folder / POOLING, bfloat16=False, parallel=parallel)
            self._check(np.load(folder / VECTORS, allow_pickle=False), _LEAST_COSINE[bfloat16])
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"OpenVINO cannot compute the model: {_one_line(error)}") from error
        _log.info("OpenVINO %s computes the encoder %s in %s", installed_version(), self.name, self.precision)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the tokens that the model reads of passages."""
        read = self._tokenizer.encode_batch_fast([self._passage_prompt + text for text in texts])
        return sum(len(one) for one in read)

    def encode_query(self, text: str) -> VectorArray:
        """Return the vector of one query, ``[dimension]``."""
        return self._vectors([self._query_prompt + text])[0]

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """Return the vectors of passages, ``[len(texts), dimension]``; equal texts are encoded once."""

        def encode(batch: list[str]) -> list[VectorArray]:
            return self._vectors([self._passage_prompt + text for text in batch])

        found = in_batches(texts, CPU_ROWS, encode, progress)
        return np.array(found, dtype=np.float32).reshape(-1, self.dimension)

    def _vectors(self, texts: Sequence[str]) -> list[VectorArray]:
        read = self._tokenizer.encode_batch(texts)
        found: dict[int, VectorArray] = {}
        for batch in alike([self._layers.size(len(one.ids)) for one in read], 1, self._layers.together):
            rows = [read[at] for at in batch]
            types = [one.type_ids for one in rows] if self._reads_types else None
            for at, states in zip(
                batch, self._layers.states(self._words, [one.ids for one in rows], types), strict=True
            ):
                pooled = self._pooling([states[None]])[0]
                found[at] = pooled / np.maximum(np.linalg.norm(pooled), np.float32(1e-12))
        return [found[at] for at in range(len(texts))]

    def _check(self, wanted: VectorArray, least: float) -> None:
        """Compare with PyTorch."""
        for text, vector in zip(CHECKED, wanted, strict=True):
            cosine = float(self._vectors([text])[0] @ vector)
            if not cosine >= least:
                raise EngineError(
                    "OpenVINO does not compute what PyTorch does: the vectors of a text have a cosine of "
                    f"{cosine:.4f}"
                )
        read = self._tokenizer.encode(CHECKED[-1])
        self._layers.try_together(self._words, read.ids, read.type_ids if self._reads_types else None)


def _source(model: str) -> Path:
    """Return the folder of a model.

    Raises:
        NoModelError: there is none.
    """
    if model == BUNDLED:
        try:
            return evenmesh_models.minilm()
        except evenmesh_models.BaseModelError as error:
            raise NoModelError(str(error)) from None
    from evenmesh_kit.compute.model_files import ModelError, locate  # imports the hub's client

    try:
        return locate(model, allow_download=False)
    except ModelError as error:
        raise NoModelError(str(error)) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
