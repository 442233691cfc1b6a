"""A cross-encoder of sentence-transformers: query and passage read together, one score."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import SafetensorError
from sentence_transformers import CrossEncoder
from torch import Tensor
from transformers.utils import logging as transformers_logging

from meshkit import models
from meshkit.batching import MicroBatcher
from meshkit.compute import ComputePool
from meshkit.lengths import by_length
from meshkit.placement import Placement
from services.reranker.domain import Agent, LearnedModel, Passage, Scores
from services.reranker.settings import RerankerSettings

_CHUNK = 32
"""Pairs of one request that queue together."""

_WAITING = 2
"""Chunks of one request that queue at the same time: others get between those of a large request."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Pairs of one request and how many tokens each has."""

    pairs: tuple[tuple[str, str], ...]
    tokens: tuple[int, ...]


class CrossEncoderReranker:
    """Scores passages in batches shared between concurrent requests.

    Pairs of all waiting requests are sorted by length and computed in small batches, which wastes little on
    padding. A passage is read as its title and text, joined by a space; what is too long is cut at its end.

    Args:
        encoder: a CrossEncoder with one logit (scored by its sigmoid) or two classes (the second's
            probability).
        version: version of its weights.
        provenance: where it came from, for people.
        created_at: when its weights were made.
        pool: threads that compute; two, so that one request is tokenised while another is scored.
        placement: device and, with bfloat16 or float16, number type of the matrix products.
        batch_size: most pairs in a batch.
        batch_tokens: most padded tokens in a batch, and most tokens taken from the queue at once. Tokens.
        max_delay_s: longest wait for company when nothing runs. Seconds, [0, inf).
    """

    def __init__(
        self,
        encoder: CrossEncoder,
        version: str,
        *,
        provenance: str,
        created_at: datetime,
        pool: ComputePool,
        placement: Placement,
        batch_size: int,
        batch_tokens: int,
        max_delay_s: float,
    ) -> None:
        self._encoder = encoder
        self._version = version
        self._model = LearnedModel(version, True, created_at, provenance)
        self._pool = pool
        self._placement = placement
        self._batch_size = batch_size
        self._batch_tokens = batch_tokens
        # A fast tokenizer sets its truncation in place and must not be used by two threads at once.
        self._tokenizer_lock = Lock()
        self._batcher: MicroBatcher[_Chunk, list[float]] = MicroBatcher(
            self._run,
            max_size=64,
            max_delay_s=max_delay_s,
            cost=lambda chunk: sum(chunk.tokens),
            max_cost=batch_tokens,
        )

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scores:
        """The probability of each passage. Models here know no agents yet: all are unknown ones."""
        chunks, order = await self._pool.run(self._chunks, query, passages)
        turn = asyncio.Semaphore(_WAITING)

        async def in_turn(chunk: _Chunk) -> list[float]:
            async with turn:
                return await self._batcher.submit(chunk)

        scored = await asyncio.gather(*map(in_turn, chunks))
        values = [0.0] * len(passages)
        for at, value in zip(order, (value for chunk in scored for value in chunk), strict=True):
            values[at] = value
        return Scores(tuple(values), self._version)

    def models(self) -> list[LearnedModel]:
        """The one it serves."""
        return [self._model]

    async def close(self) -> None:
        """Scores what is queued and takes no more."""
        await self._batcher.close()

    def _chunks(self, query: str, passages: Sequence[Passage]) -> tuple[list[_Chunk], list[int]]:
        """The request's pairs, longest first, in chunks; and the place of each in the request."""
        pairs = [(query, _text(passage)) for passage in passages]
        lengths = self._lengths(pairs)
        order = sorted(range(len(pairs)), key=lambda at: -lengths[at])
        return [
            _Chunk(tuple(pairs[at] for at in part), tuple(lengths[at] for at in part))
            for part in (order[begin : begin + _CHUNK] for begin in range(0, len(order), _CHUNK))
        ], order

    def _lengths(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        with self._tokenizer_lock:
            encoded: Any = self._encoder.tokenizer(
                [query for query, _ in pairs],
                [text for _, text in pairs],
                truncation=True,
                max_length=self._encoder.max_seq_length,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
        return [len(row) for row in encoded["input_ids"]]

    async def _run(self, chunks: Sequence[_Chunk]) -> list[list[float]]:
        return await self._pool.run(self._score, chunks)

    def _score(self, chunks: Sequence[_Chunk]) -> list[list[float]]:
        pairs = [pair for chunk in chunks for pair in chunk.pairs]
        lengths = [length for chunk in chunks for length in chunk.tokens]
        values = [0.0] * len(pairs)
        for batch in by_length(lengths, self._batch_tokens, size=self._batch_size):
            for at, value in zip(batch, self._probabilities([pairs[at] for at in batch]), strict=True):
                values[at] = value
        scored: list[list[float]] = []
        begin = 0
        for chunk in chunks:
            scored.append(values[begin : begin + len(chunk.pairs)])
            begin += len(chunk.pairs)
        return scored

    def _probabilities(self, pairs: list[tuple[str, str]]) -> list[float]:
        with self._tokenizer_lock:
            features: dict[str, Any] = self._encoder.preprocess(pairs)
        device, dtype = self._placement.device, self._placement.dtype
        features = {
            name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()
        }
        narrow = dtype is not torch.float32
        with torch.inference_mode(), torch.autocast(device.type, dtype=dtype, enabled=narrow):
            logits: Tensor = self._encoder(features)["scores"]
        logits = logits.double().reshape(len(pairs), -1)
        if logits.shape[1] == 1:
            return [float(value) for value in logits[:, 0].sigmoid()]
        return [float(value) for value in logits.softmax(1)[:, 1]]


def from_settings(settings: RerankerSettings, pool: ComputePool) -> CrossEncoderReranker:
    """The cross-encoder that the settings name; call it in a thread.

    Raises:
        ModelError: it cannot be had.
        DeviceError: there is no such device.
    """
    # A batch computes alone: it may use every core.
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    placement = Placement.choose(settings.device, settings.dtype)
    folder = models.locate(settings.cross_encoder, allow_download=settings.allow_download)
    return CrossEncoderReranker(
        load(folder, placement, max_length=settings.max_length),
        models.version(folder),
        provenance=f"loaded from {Path(settings.cross_encoder).name}",
        created_at=_written_at(folder),
        pool=pool,
        placement=placement,
        batch_size=settings.batch_size,
        batch_tokens=settings.batch_tokens,
        max_delay_s=settings.batch_delay_ms / 1000,
    )


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


def _written_at(folder: Path) -> datetime:
    newest = max(path.stat().st_mtime for path in folder.glob("*.safetensors"))
    return datetime.fromtimestamp(newest, UTC)


def _text(passage: Passage) -> str:
    return (
        f"{passage.title} {passage.text}" if passage.title and passage.text else passage.title or passage.text
    )
