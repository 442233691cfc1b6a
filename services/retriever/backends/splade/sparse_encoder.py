"""Sparse encoders through sentence-transformers: SPLADE, and whatever else is a ``SparseEncoder``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np
import torch
from sentence_transformers import SparseEncoder
from transformers.utils import logging as transformers_logging

from services.retriever.backends.splade.postings import SparseVector
from services.retriever.ports import CannotStart

_BATCH: Final = 16


class SparseTextEncoder(Protocol):
    """Turns text into weights of vocabulary terms. Called from several threads at once."""

    @property
    def name(self) -> str:
        """Name of the model, for people."""

    @property
    def fingerprint(self) -> str:
        """Names the weights of the model: vectors of two encoders may be compared only if it is equal."""

    @property
    def vocabulary(self) -> int:
        """Terms there are."""

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``."""

    def encode_query(self, text: str) -> SparseVector:
        """The vector of one query."""

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> list[SparseVector]:
        """The vectors of passages; ``progress`` is told the number of texts done after each batch."""


class SpladeEncoder:
    """A ``SparseEncoder``: a SPLADE model, an inference-free one, or one saved by sentence-transformers.

    Args:
        model: a folder, or a name in the local Hugging Face cache; nothing is downloaded. A folder of a plain
            masked language model becomes SPLADE with max pooling.
        device: ``auto`` (a GPU if PyTorch sees one), ``cpu`` or ``cuda:0``.
        setting: name of the setting ``model`` comes from, for errors.

    Raises:
        CannotStart: there is no such model, or it cannot be loaded.
    """

    def __init__(self, model: str, *, device: str = "auto", setting: str = "model") -> None:
        self._name = Path(model).name if Path(model).is_dir() else model
        self._device = ("cuda:0" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._model = _load(model, self._device, setting)
        # One text after the other: the tokenizer must not be used by two threads at once.
        self._guard = Lock()
        self._fingerprint = _fingerprint(self._model)
        self._vocabulary = int(self._encoded(["vocabulary"], self._model.encode_document).shape[1])

    @property
    def name(self) -> str:
        """Name of the model, or of its folder."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """Hash of the weights, the prompts and the length limit."""
        return self._fingerprint

    @property
    def vocabulary(self) -> int:
        """Terms there are."""
        return self._vocabulary

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``."""
        return self._device

    def encode_query(self, text: str) -> SparseVector:
        """The vector of one query."""
        return _vectors(self._encoded([text], self._model.encode_query))[0]

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> list[SparseVector]:
        """The vectors of passages; equal texts are encoded once."""
        place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        distinct = sorted(place, key=lambda text: (-len(text), text))
        found: dict[str, SparseVector] = {}
        for begin in range(0, len(distinct), _BATCH):
            batch = distinct[begin : begin + _BATCH]
            encoded = _vectors(self._encoded(batch, self._model.encode_document))
            found.update(zip(batch, encoded, strict=True))
            progress(min(begin + _BATCH, len(distinct)))
        return [found[text] for text in texts]

    def _encoded(self, texts: list[str], encode: Callable[..., Any]) -> torch.Tensor:
        with self._guard:
            encoded: torch.Tensor = encode(
                texts, convert_to_tensor=True, convert_to_sparse_tensor=False, show_progress_bar=False
            )
        return encoded


def _vectors(encoded: torch.Tensor) -> list[SparseVector]:
    dense = encoded.float().cpu().numpy()
    terms = [np.flatnonzero(row > 0) for row in dense]
    return [SparseVector(some, row[some]) for some, row in zip(terms, dense, strict=True)]


def _load(model: str, device: str, setting: str) -> SparseEncoder:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return SparseEncoder(model, device=device, local_files_only=True).eval()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        if Path(model).is_dir():
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CannotStart(f"{setting}={model!r}: is no sparse encoder: {why}") from None
        raise CannotStart(
            f"{setting}={model!r}: no such folder, and not in the local Hugging Face cache: give a folder, "
            f"or fetch the model with `hf download {model}`"
        ) from None


def _fingerprint(model: SparseEncoder) -> str:
    digest = hashlib.sha256(repr((model.max_seq_length, sorted(model.prompts.items()))).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
