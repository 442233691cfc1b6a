"""Encode with sparse encoders of sentence-transformers: SPLADE, and any other ``SparseEncoder``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SparseEncoder

from evenmesh_retriever.backends.local_encoder import LocalEncoder
from evenmesh_retriever.backends.splade.postings import SparseVector
from evenmesh_retriever.steps import in_batches


class SpladeEncoder(LocalEncoder[SparseEncoder]):
    """A ``SparseEncoder``: a SPLADE model, an inference-free one, or one saved by sentence-transformers.

    Args:
        model: a folder, or a name in the local Hugging Face cache; nothing is downloaded. A folder of a plain
            masked language model becomes SPLADE with max pooling.
        device: ``auto`` (a GPU if PyTorch sees one), ``cpu`` or ``cuda:0``.
        setting: name of the setting ``model`` comes from, for errors.
        batch: most passages that are encoded together; None: 16 on a CPU, any number on a GPU.
        require_gpu: whether the CPU is refused.

    Raises:
        CannotStart: there is no such model, it cannot be loaded, or there is no such device.
    """

    UNFIT = "is no sparse encoder"

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        setting: str = "model",
        batch: int | None = None,
        require_gpu: bool = False,
    ) -> None:
        super().__init__(
            SparseEncoder, model, model, device=device, setting=setting, batch=batch, require_gpu=require_gpu
        )
        self.fingerprint = self._identify(sorted(self.model.prompts.items()))
        self.vocabulary = int(self._encoded(["vocabulary"], self.model.encode_document).shape[1])

    def encode_query(self, text: str) -> SparseVector:
        """Return the vector of one query."""
        return _vectors(self._encoded([text], self.model.encode_query))[0]

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> list[SparseVector]:
        """Return the vectors of passages; equal texts are encoded once."""

        def encode(batch: list[str]) -> list[SparseVector]:
            return _vectors(self._encoded(batch, self.model.encode_document))

        return in_batches(texts, self.batch, encode, progress)

    def _encoded(self, texts: list[str], encode: Callable[..., Any]) -> torch.Tensor:
        with self._tokenizer:  # one text after the other: the model tokenizes and computes in one call
            encoded: torch.Tensor = encode(
                texts, convert_to_tensor=True, convert_to_sparse_tensor=False, show_progress_bar=False
            )
        return encoded


def _vectors(encoded: torch.Tensor) -> list[SparseVector]:
    dense = encoded.float().cpu().numpy()
    terms = [np.flatnonzero(row > 0) for row in dense]
    return [SparseVector(some, row[some]) for some, row in zip(terms, dense, strict=True)]
