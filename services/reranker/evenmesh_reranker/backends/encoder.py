"""A cross-encoder in memory: it reads query and passage together and gives one score."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from safetensors import SafetensorError
from sentence_transformers import CrossEncoder
from torch import Tensor
from transformers.utils import logging as transformers_logging

from evenmesh_kit.compute.first_token import last_layer_of_first_token
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_kit.compute.placement import LOADING, Placement
from evenmesh_kit.compute.weights import narrow
from evenmesh_reranker.backends import readings
from evenmesh_reranker.backends.adapters import LowRankAdapter, applied
from evenmesh_reranker.backends.first_token import needs_first_token_alone
from evenmesh_reranker.backends.head import exact, head
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.models import pairs, token_names, tokens
from evenmesh_reranker.models.fusions import FIELD, Fusions
from evenmesh_reranker.ports import Adapter, LoadedModel, Row


class Encoder:
    """A :class:`evenmesh_reranker.ports.LoadedModel`.

    A model with agent tokens reads ``[CLS] [task:t] [model:m] query [SEP] passage [SEP]``, one without
    ``[CLS] query [SEP] passage [SEP]``, by its own template. The end of the longer text is cut if the pair is
    too long; agent tokens never are.

    Args:
        encoder: a CrossEncoder with one logit (the score is its sigmoid) or two classes (the score is the
            second's probability).
        version: version of its weights.
        provenance: where it came from, for people.
        created_at: when its weights were made.
        placement: device, and number type of the matrix products.
        first_token: whether the last layer may be computed for the first token alone; see
            :func:`evenmesh_reranker.backends.first_token.needs_first_token_alone`.
    """

    def __init__(
        self,
        encoder: CrossEncoder,
        version: str,
        *,
        provenance: str,
        created_at: datetime,
        placement: Placement,
        first_token: bool,
    ) -> None:
        self.encoder = encoder
        self.version = version
        self.provenance = provenance
        self.created_at = created_at
        self.fusions = fusions_of(encoder)
        self.reads_asking = reads_asking(encoder)
        self._placement = placement
        self._first_token = first_token
        # A fast tokenizer sets its truncation in place: two threads must not use it at once.
        self._tokenizer_lock = Lock()
        # Held while the parameters are read or, for new tokens, replaced.
        self._model_lock = Lock()

    @property
    def size(self) -> int:
        """Size in memory. Bytes."""
        return sum(one.numel() * one.element_size() for one in self.encoder.parameters())

    @property
    def device(self) -> str:
        """See the port."""
        return str(self._placement.device)

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.encoder.tokenizer

    def embeddings(self) -> Tensor:
        """Return its embeddings of words, ``[vocabulary, hidden]``."""
        return tokens.embeddings(self.encoder.model)

    @property
    def agent_tokens(self) -> tuple[str, ...]:
        """See the port."""
        return tokens.present(self.encoder.tokenizer)

    def knows(self, agent: Agent) -> bool:
        """See the port."""
        return tokens.has(self.encoder.tokenizer, *token_names.agent_tokens(agent))

    def add_agents(self, agents: Sequence[Agent]) -> None:
        """See the port."""
        with self._tokenizer_lock, self._model_lock:
            if tokens.is_personal(self.encoder.tokenizer):
                tokens.add_agents(self.encoder.tokenizer, self.encoder.model, agents)

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        """See the port. No query or text becomes a special token."""
        count = len(texts)
        with self._tokenizer_lock:
            return pairs.rows(
                self.encoder.tokenizer, [query] * count, texts, [agent] * count, self.encoder.max_seq_length
            )

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        """See the port."""
        device, dtype = self._placement.device, self._placement.dtype
        features = {
            name: value.to(device) for name, value in pairs.padded(self.encoder.tokenizer, rows).items()
        }
        narrow = dtype is not torch.float32
        low_rank = cast("Sequence[LowRankAdapter | None]", adapters)
        model = cast(Any, self.encoder.model)
        with (
            self._model_lock,
            applied(model, low_rank),
            last_layer_of_first_token(model.base_model) if self._first_token else nullcontext(),
            exact(head(model) if narrow else ()),
            torch.inference_mode(),
            torch.autocast(device.type, dtype=dtype, enabled=narrow),
        ):
            logits: Tensor = self.encoder(features)["scores"]
        return scores_of(logits)

    @property
    def parallel(self) -> int:
        """See the port: PyTorch's threads share one batch."""
        return 1

    def batches(self, lengths: Sequence[int]) -> None:
        """See the port."""

    def scores(
        self, query: str, passages: Sequence[Passage], agent: Agent, adapter: Adapter | None = None
    ) -> list[float]:
        """Return the score of each passage, [0, 1], as serving computes it."""
        read = readings.readings(self, query)
        texts = [pairs.passage_text(one.title, one.text) for one in passages]
        rows = readings.rows(self, read, texts, agent)
        return readings.scores(pairs.probabilities(self, rows, [adapter] * len(rows)), len(read))


class EncoderLoader:
    """A :class:`evenmesh_reranker.ports.ModelLoader`.

    Args:
        placement: device and number type of the models.
        max_length: longest pair; None: what the model reads. Tokens.
        narrow: whether the weights of a full model are converted to the number type once, for serving; what
            is trained further keeps those of its file.
    """

    def __init__(self, placement: Placement, *, max_length: int | None = None, narrow: bool = False) -> None:
        self.placement = placement
        self.max_length = max_length
        self._narrow = narrow

    @classmethod
    def create(
        cls,
        device: str,
        dtype: str,
        *,
        threads: int | None,
        max_length: int | None = None,
        require_gpu: bool = False,
    ) -> EncoderLoader:
        """Return a loader that serves in this process, whose threads of a matrix product it sets.

        Call it in a thread.

        Args:
            device: name of the device.
            dtype: name of the number type.
            threads: threads of one matrix product; None: one for each core.
            max_length: longest pair; None: what the model reads. Tokens.
            require_gpu: whether the CPU is refused.

        Raises:
            DeviceError: there is no such device, or no GPU where one is required.
        """
        torch.set_num_threads(threads or os.cpu_count() or 1)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        placement = Placement.choose(device, dtype, require_gpu=require_gpu)
        return cls(placement, max_length=max_length, narrow=True)

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> Encoder:
        """See the port."""
        encoder = load(folder, self.placement, max_length=self.max_length)
        first_token = needs_first_token_alone(encoder)
        if self._narrow and self.placement.dtype is not torch.float32:
            model = cast(Any, encoder.model)
            narrow([model], self.placement.dtype, but=head(model))
        return Encoder(
            encoder,
            version,
            provenance=provenance,
            created_at=created_at,
            placement=self.placement,
            first_token=first_token,
        )

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> LowRankAdapter:
        """See the port."""
        model = cast(Encoder, base).encoder.model
        return LowRankAdapter.load(folder, version, model, self.placement.device)

    def merge_tokens(self, source: LoadedModel, folder: Path, target: Path) -> tuple[str, ...]:
        """See the port."""
        old = cast(Any, source)  # of this module, or one that OpenVINO computes
        new = load(folder, self.placement)
        if not tokens.carry_over(old.tokenizer, old.embeddings(), new.tokenizer, new.model):
            return ()
        for path in folder.iterdir():
            if path.suffix != ".safetensors":
                shutil.copyfile(path, target / path.name)
        cast(Any, new.model).save_pretrained(target)
        new.tokenizer.save_pretrained(target)
        return tokens.present(new.tokenizer)


def scores_of(logits: Tensor) -> list[float]:
    """Return the score of each row, [0, 1], from its one logit or its two classes' logits."""
    logits = logits.double().reshape(len(logits), -1)
    scores = logits[:, 0].sigmoid() if logits.shape[1] == 1 else logits.softmax(1)[:, 1]
    # All at once: each single score would wait for the device.
    found: list[float] = scores.tolist()
    return found


def load(folder: Path, placement: Placement, *, max_length: int | None = None) -> CrossEncoder:
    """Return the cross-encoder in ``folder``; read safetensors only, and run no code of the folder.

    Raises:
        ModelError: it cannot be loaded, has neither one nor two labels, or its config has a wrong value.
    """
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no *.safetensors weights; other formats are not loaded")
    try:
        with LOADING:
            encoder: CrossEncoder = CrossEncoder(
                str(folder),
                device=str(placement.device),
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be loaded: {one_line(error)}") from None
    if encoder.num_labels not in (1, 2):
        raise ModelError(f"{folder} has {encoder.num_labels} labels; a reranker has one or two")
    fusions_of(encoder)
    reads_asking(encoder)
    if max_length is not None:
        encoder.max_seq_length = min(max_length, encoder.max_seq_length or max_length)
    encoder.eval()
    return encoder


def fusions_of(encoder: CrossEncoder) -> Fusions:
    """Return how a model's scores are fused with those of a first stage, as its config says.

    Raises:
        ModelError: a number is missing or out of its range.
    """
    try:
        return Fusions.parse(getattr(cast(Any, encoder.model).config, FIELD, None))
    except ValueError as error:
        raise ModelError(f"{FIELD} of config.json: {error}") from None


def reads_asking(encoder: CrossEncoder) -> bool:
    """Return whether its config says that a query is also read without what it says beside its question.

    Raises:
        ModelError: it says neither true nor false.
    """
    given = getattr(cast(Any, encoder.model).config, readings.FIELD, False)
    if not isinstance(given, bool):
        raise ModelError(f"{readings.FIELD} of config.json must be true or false, not {given!r}")
    return given
