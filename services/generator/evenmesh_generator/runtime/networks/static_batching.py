"""Models without continuous batching: waiting requests start together, with the library's own cache.

For architectures that keep more, or other, state than keys and values of every token (sliding windows,
recurrences, positions counted from the mask). Rows still leave early.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from evenmesh_generator.runtime.networks.footprints import decoder_only
from evenmesh_generator.runtime.networks.prefills import EncoderPrefill
from evenmesh_generator.runtime.networks.protocol import DecoderStart, Demand, Footprint, Joining, Prompt
from evenmesh_generator.runtime.networks.seq2seq import Seq2SeqNetwork
from evenmesh_generator.runtime.networks.sources import STATES
from evenmesh_kit.compute.placement import upload

_NOTHING = torch.empty(0)


class DeferredPrefill:
    """A prompt that is read when its answer begins."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.computed = prompt.tokens
        self.reused = 0
        self.done = True


class StaticCausalNetwork:
    """A :class:`~evenmesh_generator.runtime.networks.protocol.Network` of a decoder-only model."""

    normalised = False

    def __init__(self, model: PreTrainedModel, *, pad: int) -> None:
        self.model: Any = model
        self.pad = pad
        self.footprint = replace(decoder_only(model), read=0)

    @property
    def device(self) -> torch.device:
        """Return the device it computes on."""
        return cast(torch.device, self.model.device)

    def prefill(self, prompt: Prompt) -> DeferredPrefill:
        """Do nothing before the first step."""
        return DeferredPrefill(prompt)

    def advance(self, prefills: Sequence[DeferredPrefill], most_tokens: int) -> None:
        """Do nothing before the first step."""

    def begin(self, prefills: Sequence[DeferredPrefill]) -> list[DecoderStart]:
        """Return the prompts; the first step reads them."""
        ids = [torch.tensor(one.prompt.rows[0]) for one in prefills]
        return [DecoderStart(None, _NOTHING, [{STATES: one}]) for one in ids]

    def judge(self, prefills: Sequence[DeferredPrefill]) -> Tensor:
        """Return scores of the first token."""
        return _judged(self, prefills)

    def rows(self) -> StaticRows:
        """Return an empty batch."""
        return StaticRows(self.model, self.pad, self.footprint)

    def counts(self) -> tuple[int, int, int]:
        """Return zeros: nothing is kept."""
        return 0, 0, 0


class StaticSeq2SeqNetwork(Seq2SeqNetwork):
    """A :class:`~evenmesh_generator.runtime.networks.protocol.Network` of an encoder–decoder."""

    def begin(self, prefills: Sequence[EncoderPrefill[Tensor]]) -> list[DecoderStart]:
        """Return the encoder states; the first step runs the decoder."""
        return [DecoderStart(None, _NOTHING, [{STATES: torch.cat(one.parts())}]) for one in prefills]

    def judge(self, prefills: Sequence[EncoderPrefill[Tensor]]) -> Tensor:
        """Return scores of the first token."""
        return torch.stack([one.logits for one in super().begin(prefills) if one.logits is not None])

    def rows(self) -> StaticRows:  # type: ignore[override]
        """Return an empty batch."""
        return StaticRows(self._model, self._pad, self.footprint)


class StaticRows:
    """A batch whose rows all joined before its first step."""

    def __init__(self, model: Any, pad: int, footprint: Footprint) -> None:
        self._model = model
        self._pad = pad
        self._footprint = footprint
        self._encodes = bool(model.config.is_encoder_decoder)
        self._positions = "position_ids" in inspect.signature(model.forward).parameters
        self._joined: list[Tensor] = []
        self._demands: list[Demand] = []
        self._states: Tensor | None = None
        self._mask = _NOTHING
        self._cache: Any = None

    def planned(self, joining: Sequence[Demand]) -> int:
        """Return the most bytes that the batch has, or the next one, which starts when this one is over."""
        if self._cache is None:
            return self._size([*self._demands, *joining])
        return max(self._size(self._demands), self._size(joining))

    def join(self, joining: Sequence[Joining]) -> None:
        """Add requests' rows, before the first step."""
        assert self._cache is None, "the batch is running"  # noqa: S101
        for one in joining:
            given = one.started.parts[0][STATES]
            self._joined += [given] * one.width
            self._demands.append(Demand(one.width, one.most, len(given)))

    def _size(self, demands: Sequence[Demand]) -> int:
        """Return the most bytes of a batch: every row has its own source, padded to the longest."""
        rows = sum(one.rows for one in demands)
        own = rows * max([one.own for one in demands], default=0)
        source = rows * max([one.source for one in demands], default=0) if self._encodes else 0
        states = self._footprint.read - self._footprint.source
        return self._footprint.batch(own, source) + source * states

    def step(self, written: Sequence[int]) -> Tensor:
        """Return scores after every row's token; the first step reads the prompts."""
        tokens = upload(written, self._model.device)
        if self._encodes:
            return self._step_encoded(tokens)
        more: dict[str, Any] = {}
        if self._cache is None:
            ids = pad_sequence(
                self._joined, batch_first=True, padding_value=self._pad, padding_side="left"
            ).to(tokens.device)
            ones = [torch.ones_like(one) for one in self._joined]
            self._mask = pad_sequence(ones, batch_first=True, padding_side="left").to(tokens.device)
            positions = (self._mask.cumsum(1) - 1).clamp_min(0)
            self._joined = []
        else:
            ids = tokens[:, None]
            self._mask = torch.cat([self._mask, torch.ones_like(ids)], 1)
            positions = self._mask.sum(1, keepdim=True) - 1
        if self._positions:
            more["position_ids"] = positions
        found = self._model(
            input_ids=ids, attention_mask=self._mask, past_key_values=self._cache, use_cache=True, **more
        )
        self._cache = found.past_key_values
        logits: Tensor = found.logits[:, -1]
        return logits

    def settle(
        self, sources: Sequence[int], rows: Mapping[int, Sequence[int]], left: Mapping[int, int]
    ) -> None:
        """Rearrange rows."""
        if not sources:
            self._joined, self._demands, self._states, self._cache = [], [], None, None
            return
        if self._cache is None and self._states is None:  # nothing was computed yet
            self._joined = [self._joined[at] for at in sources]
            return
        if list(sources) == list(range(len(self._mask))):
            return
        index = upload(sources, self._mask.device)
        self._mask = self._mask[index]
        if self._states is not None:
            self._states = self._states[index]
        self._cache.reorder_cache(index)

    @property
    def bytes(self) -> int:
        """Return the size of the library's cache, and of the encoder's states."""
        caches = [
            getattr(self._cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")
        ]
        layers = [layer for cache in (self._cache, *caches) for layer in getattr(cache, "layers", None) or ()]
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return sum(one.nbytes for one in (*tensors, self._states) if isinstance(one, Tensor))

    def _step_encoded(self, tokens: Tensor) -> Tensor:
        if self._states is None:
            self._states = pad_sequence(self._joined, batch_first=True)
            ends = upload([len(one) for one in self._joined], tokens.device)[:, None]
            at = torch.arange(self._states.shape[1], device=tokens.device)
            self._mask = (at < ends).long()
            self._joined = []
        found = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=self._mask,
            decoder_input_ids=tokens[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache = found.past_key_values
        logits: Tensor = found.logits[:, -1]
        return logits


def _judged(network: StaticCausalNetwork, prefills: Sequence[DeferredPrefill]) -> Tensor:
    rows = network.rows()
    rows.join([Joining(owner, started, 1, 1) for owner, started in enumerate(network.begin(prefills))])
    return rows.step([0] * len(prefills))
