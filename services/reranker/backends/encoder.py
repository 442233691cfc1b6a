"""A cross-encoder in memory: query and passage read together, one score."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from safetensors import SafetensorError
from sentence_transformers import CrossEncoder
from torch import Tensor
from transformers.utils import logging as transformers_logging

from meshkit import models
from meshkit.placement import Placement
from services.reranker.backends.adapters import LowRankAdapter, applied
from services.reranker.backends.head import exact, head
from services.reranker.domain import Agent
from services.reranker.models import pairs, token_names, tokens
from services.reranker.ports import Adapter, LoadedModel, Row
from services.reranker.settings import RerankerSettings


class Encoder:
    """A :class:`services.reranker.ports.LoadedModel`.

    A model with tokens of agents reads ``[CLS] [task:t] [model:m] query [SEP] passage [SEP]``, one without
    ``[CLS] query [SEP] passage [SEP]``, in its own template's words. What is too long is cut at the end of
    the longer of the two; the agent's tokens never are.

    Args:
        encoder: a CrossEncoder with one logit (scored by its sigmoid) or two classes (the second's
            probability).
        version: version of its weights.
        provenance: where it came from, for people.
        created_at: when its weights were made.
        placement: device and, with bfloat16 or float16, number type of the matrix products.
    """

    def __init__(
        self,
        encoder: CrossEncoder,
        version: str,
        *,
        provenance: str,
        created_at: datetime,
        placement: Placement,
    ) -> None:
        self.encoder = encoder
        self._version = version
        self._provenance = provenance
        self._created_at = created_at
        self._placement = placement
        # A fast tokenizer sets its truncation in place and must not be used by two threads at once.
        self._tokenizer_lock = Lock()
        # Held while the parameters are read or, for new tokens, replaced.
        self._model_lock = Lock()

    @property
    def version(self) -> str:
        """See the port."""
        return self._version

    @property
    def created_at(self) -> datetime:
        """See the port."""
        return self._created_at

    @property
    def provenance(self) -> str:
        """See the port."""
        return self._provenance

    @property
    def size(self) -> int:
        """See the port."""
        return sum(one.numel() * one.element_size() for one in self.encoder.parameters())

    @property
    def agent_tokens(self) -> tuple[str, ...]:
        """See the port."""
        return tokens.present(self.encoder.tokenizer)

    def knows(self, agent: Agent) -> bool:
        """See the port."""
        return token_names.agent_tokens(agent) <= set(self.agent_tokens)

    def add_agents(self, agents: Sequence[Agent]) -> None:
        """See the port."""
        with self._tokenizer_lock, self._model_lock:
            if tokens.is_personal(self.encoder.tokenizer):
                tokens.add_agents(self.encoder.tokenizer, self.encoder.model, agents)

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        """See the port. Nothing in query or texts is read as a special token."""
        with self._tokenizer_lock:
            return pairs.rows(
                self.encoder.tokenizer,
                [query] * len(texts),
                texts,
                [agent] * len(texts),
                self.encoder.max_seq_length,
            )

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        """See the port."""
        device, dtype = self._placement.device, self._placement.dtype
        features = {
            name: value.to(device) for name, value in pairs.padded(self.encoder.tokenizer, rows).items()
        }
        narrow = dtype is not torch.float32
        low_rank = cast("Sequence[LowRankAdapter | None]", adapters)
        with (
            self._model_lock,
            applied(self.encoder.model, low_rank),
            exact(head(cast(Any, self.encoder.model)) if narrow else ()),
            torch.inference_mode(),
            torch.autocast(device.type, dtype=dtype, enabled=narrow),
        ):
            logits: Tensor = self.encoder(features)["scores"]
        logits = logits.double().reshape(len(rows), -1)
        if logits.shape[1] == 1:
            return [float(value) for value in logits[:, 0].sigmoid()]
        return [float(value) for value in logits.softmax(1)[:, 1]]


class EncoderLoader:
    """A :class:`services.reranker.ports.ModelLoader`.

    Args:
        placement: where models compute and in which number type.
        max_length: longest pair; None: what the model reads. Tokens.
    """

    def __init__(self, placement: Placement, *, max_length: int | None = None) -> None:
        self._placement = placement
        self._max_length = max_length

    @classmethod
    def from_settings(cls, settings: RerankerSettings) -> EncoderLoader:
        """With what the settings say of devices and threads; call it in a thread.

        Raises:
            DeviceError: there is no such device.
        """
        # A batch computes alone: it may use every core.
        torch.set_num_threads(settings.threads or os.cpu_count() or 1)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        placement = Placement.choose(settings.device, settings.dtype)
        return cls(placement, max_length=settings.max_length)

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> Encoder:
        """See the port."""
        encoder = load(folder, self._placement, max_length=self._max_length)
        return Encoder(
            encoder, version, provenance=provenance, created_at=created_at, placement=self._placement
        )

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> Adapter:
        """See the port."""
        model = cast(Encoder, base).encoder.model
        return LowRankAdapter.load(folder, version, model, self._placement.device)

    def merge_tokens(self, source: LoadedModel, folder: Path, target: Path) -> tuple[str, ...]:
        """See the port."""
        old = cast(Encoder, source).encoder
        new = load(folder, self._placement)
        if not tokens.carry_over(old.tokenizer, old.model, new.tokenizer, new.model):
            return ()
        for path in folder.iterdir():
            if path.suffix != ".safetensors":
                shutil.copyfile(path, target / path.name)
        cast(Any, new.model).save_pretrained(target)
        new.tokenizer.save_pretrained(target)
        return tokens.present(new.tokenizer)


def load(folder: Path, placement: Placement, *, max_length: int | None = None) -> CrossEncoder:
    """The cross-encoder in ``folder``: safetensors only, no code of its own.

    Raises:
        ModelError: it cannot be loaded, or has neither one nor two labels.
    """
    if not any(folder.glob("*.safetensors")):
        raise models.ModelError(f"{folder} has no *.safetensors weights; other formats are not loaded")
    try:
        encoder: CrossEncoder = CrossEncoder(
            str(folder),
            device=str(placement.device),
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True},
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise models.ModelError(f"{folder} cannot be loaded: {models.one_line(error)}") from None
    if encoder.num_labels not in (1, 2):
        raise models.ModelError(f"{folder} has {encoder.num_labels} labels; a reranker has one or two")
    if max_length is not None:
        encoder.max_seq_length = min(max_length, encoder.max_seq_length or max_length)
    encoder.eval()
    return encoder
