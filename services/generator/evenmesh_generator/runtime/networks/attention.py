"""The attention of transformers models inside the running batch.

Registered under a name of its own: where a decoder attends to its source, the keys it is given stand for the
source groups of the batch, and beams share what they read; everywhere else it is the library's SDPA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from evenmesh_generator.runtime.networks.sources import Sources
from evenmesh_generator.runtime.networks.timeline import Timeline

ATTENTION = "evenmesh_running"
"""Name under which models find the attention function."""


class _Source:
    """Stands for the keys of one layer; the models look at nothing but the shape."""

    def __init__(self, sources: Sources, layer: int) -> None:
        self.sources = sources
        self.layer = layer
        self.shape = (1, 1, 1, 1)


def attend(
    module: nn.Module, query: Tensor, key: Any, value: Any, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Return the attention of one layer, [N, T, A, D], from ``query`` [N, A, T, D]."""
    if isinstance(key, _Source):
        scale = kwargs.get("scaling")
        size = float(query.shape[-1])
        found = key.sources.attend(key.layer, query, size**-0.5 if scale is None else scale)
        return found.transpose(1, 2).contiguous(), None
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return output, None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class _OwnLayer(CacheLayerMixin):
    """One layer of the timeline, as the library's models use a cache."""

    is_sliding = False

    def __init__(self, timeline: Timeline, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._timeline = timeline
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the tensors exist already."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new token's keys and values."""
        return self._timeline.write(self._layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns, and where they begin."""
        return self._timeline.width + query_length, 0

    def get_seq_length(self) -> int:
        """Return the columns before the step."""
        return self._timeline.width

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


class _SourceLayer(CacheLayerMixin):
    """One layer's source."""

    is_sliding = False

    def __init__(self, sources: Sources, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: Any = _Source(sources, layer)
        self.values: Any = self.keys
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the tensors exist already."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Raise: the source does not grow, so this is never called."""
        raise NotImplementedError

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the sizes of one token: the source groups know the padding."""
        return 1, 0

    def get_seq_length(self) -> int:
        """Return 1: there is at least one token."""
        return 1

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


def own_cache(timeline: Timeline, layers: int) -> Cache:
    """Return the cache of a decoder-only model."""
    return Cache(layers=[_OwnLayer(timeline, layer) for layer in range(layers)])


def shared_cache(timeline: Timeline, sources: Sources, layers: int) -> EncoderDecoderCache:
    """Return the cache of an encoder–decoder."""
    source = Cache(layers=[_SourceLayer(sources, layer) for layer in range(layers)])
    cache = EncoderDecoderCache(own_cache(timeline, layers), source)
    cache.is_updated = dict.fromkeys(range(layers), True)
    return cache


class SteppedPositions(nn.Module):
    """Learned positions that rows of different lengths read, each its own."""

    def __init__(self, inner: nn.Embedding) -> None:
        super().__init__()
        self.inner = inner
        self.positions: Tensor | None = None
        """Position [N, 1] of every row's token; None outside of the running batch."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the position embeddings."""
        if self.positions is None:
            found: Tensor = self.inner(*args, **kwargs)
            return found
        offset = int(getattr(self.inner, "offset", 0))
        return nn.functional.embedding(self.positions + offset, self.inner.weight)


def step_mask(timeline: Timeline, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return additive mask [N or 1, 1, 1, W + 1] of the next step."""
    mask = timeline.mask(dtype)
    return torch.zeros((1, 1, 1, timeline.width + 1), dtype=dtype, device=device) if mask is None else mask
