"""What dense and sparse encoders of sentence-transformers in this process have in common."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import ClassVar, Generic, TypeVar

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from transformers.utils import logging as transformers_logging

from evenmesh_kit.compute.devices import DeviceError, choose_device
from evenmesh_kit.compute.lengths import rows_at_once
from evenmesh_retriever.ports import CannotStart

M = TypeVar("M", SentenceTransformer, SparseEncoder)


class LocalEncoder(Generic[M]):
    """A model of sentence-transformers in this process; see the ports for its attributes.

    Args:
        kind: class of the model.
        model: a folder, or a name in the local Hugging Face cache; nothing is downloaded.
        source: where it is, if not there.
        device: ``auto`` (a GPU if PyTorch sees one), ``cpu`` or ``cuda:0``.
        setting: name of the setting ``model`` comes from, for errors.
        batch: most texts that are encoded together; None: 16 on a CPU, any number on a GPU.
        require_gpu: whether the CPU is refused.

    Raises:
        CannotStart: there is no such model, it cannot be loaded, or there is no such device.
    """

    UNFIT: ClassVar[str]
    """What is wrong with a folder that does not load, for errors; may name the ``{device}``."""

    def __init__(
        self,
        kind: type[M],
        model: str,
        source: str | os.PathLike[str],
        *,
        device: str,
        setting: str,
        batch: int | None = None,
        require_gpu: bool = False,
    ) -> None:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self.name = Path(model).name if Path(model).is_dir() else model
        try:
            self.device = str(choose_device(device, require_gpu=require_gpu))
        except DeviceError as error:
            raise CannotStart(f"{setting}={model!r}: {error}") from None
        self.batch = batch or rows_at_once(self.device)
        """Most texts that are encoded together; None: any number."""
        self._passage_prompt = ""
        # A fast tokenizer must not be used by two threads at once; the model may.
        self._tokenizer = Lock()
        try:
            self.model: M = kind(
                str(source), device=self.device, local_files_only=True, trust_remote_code=False
            ).eval()
            """The model."""
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            if Path(source).is_dir():
                unfit = self.UNFIT.format(device=self.device)
                why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise CannotStart(f"{setting}={model!r}: {unfit}: {why}") from None
            raise CannotStart.without_model(setting, model) from None
        # A model without positions may have an infinite limit, or none.
        self.max_tokens = int(min(self.model.max_seq_length or sys.maxsize, sys.maxsize))

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the tokens that the model reads of passages encoded together, padding included."""
        with self._tokenizer:
            read = self.model.preprocess([self._passage_prompt + text for text in texts])
        return int(read["input_ids"].numel())

    def _identify(self, *settings: object) -> str:
        """Return the hash of the length limit, ``settings`` and the weights."""
        digest = hashlib.sha256(repr((self.model.max_seq_length, *settings)).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]
