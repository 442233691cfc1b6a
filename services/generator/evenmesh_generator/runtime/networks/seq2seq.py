"""Encoder–decoders of the transformers library in the running batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from evenmesh_generator.runtime.networks.attention import SteppedPositions, shared_cache, step_mask
from evenmesh_generator.runtime.networks.encodings import EncodingStore, content_key
from evenmesh_generator.runtime.networks.footprints import encoder_decoder
from evenmesh_generator.runtime.networks.prefills import EncoderPrefill, hand_out, next_rows
from evenmesh_generator.runtime.networks.protocol import DecoderStart, Footprint, Prompt
from evenmesh_generator.runtime.networks.sources import STATES, SourcedRows
from evenmesh_kit.compute.lengths import by_length, rows_at_once
from evenmesh_kit.compute.placement import upload


class Seq2SeqNetwork:
    """A :class:`~evenmesh_generator.runtime.networks.protocol.Network`; each row is encoded once and kept.

    Args:
        pad: token that fills rows.
        batch_tokens: most padded tokens of a pass.
        cache_bytes: room for encoder states.
    """

    normalised = False

    def __init__(self, model: PreTrainedModel, *, pad: int, batch_tokens: int, cache_bytes: int) -> None:
        self._model: Any = model
        self._pad = pad
        self._rows = rows_at_once(str(model.device))
        self._batch_tokens = batch_tokens
        self._store: EncodingStore[Tensor] = EncodingStore(cache_bytes, lambda states: states.nbytes)
        self._positions = _stepped(model)
        self.footprint = encoder_decoder(model)

    @property
    def device(self) -> torch.device:
        """Return the device it computes on."""
        return cast(torch.device, self._model.device)

    def prefill(self, prompt: Prompt) -> EncoderPrefill[Tensor]:
        """Start to read a prompt."""
        return EncoderPrefill(prompt, [content_key(row, tenant=prompt.tenant) for row in prompt.rows])

    def advance(self, prefills: Sequence[EncoderPrefill[Tensor]], most_tokens: int) -> None:
        """Encode missing rows."""
        wanted = next_rows(prefills, self._store, most_tokens)
        rows = [row for row, _ in wanted.values()]
        keys = list(wanted)
        for chosen in by_length([len(row) for row in rows], self._batch_tokens, size=self._rows):
            states = self._encode([rows[at] for at in chosen])
            for place, at in enumerate(chosen):
                one = states[place, : len(rows[at])].clone()
                self._store.put(keys[at], one, wanted[keys[at]][1][0].prompt.tenant)
                hand_out(keys[at], one, wanted[keys[at]][1])

    def begin(self, prefills: Sequence[EncoderPrefill[Tensor]]) -> list[DecoderStart]:
        """Run the decoder over its start tokens; similar lengths together."""
        started: list[DecoderStart | None] = [None] * len(prefills)
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, prefill in enumerate(prefills):
            groups.setdefault(prefill.prompt.start, []).append(at)
        for start, members in groups.items():
            lengths = [prefills[at].prompt.tokens for at in members]
            for chosen in by_length(lengths, self._batch_tokens, size=self._rows):
                picked = [members[at] for at in chosen]
                for at, one in zip(picked, self._begin([prefills[at] for at in picked], start), strict=True):
                    started[at] = one
        return [one for one in started if one is not None]

    def judge(self, prefills: Sequence[EncoderPrefill[Tensor]]) -> Tensor:
        """Return scores [B, V] of the first token."""
        return torch.stack([one.logits for one in self.begin(prefills) if one.logits is not None])

    def rows(self) -> Seq2SeqRows:
        """Return an empty batch."""
        return Seq2SeqRows(self._model, self._positions, self.footprint)

    def forget(self) -> None:
        """Clear the cache and its counts."""
        self._store.clear()

    def counts(self) -> tuple[int, int, int]:
        """Return the bytes of encodings kept, encodings found, encodings not found."""
        return self._store.counts()

    def _encode(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """Return encoder states [B, L, H]."""
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=self._pad)
        mask = _mask([len(row) for row in rows])
        encoder = self._model.get_encoder()
        states: Tensor = encoder(
            input_ids=ids.to(self.device), attention_mask=mask.to(self.device)
        ).last_hidden_state
        return states

    def _begin(
        self, prefills: Sequence[EncoderPrefill[Tensor]], start: tuple[int, ...]
    ) -> list[DecoderStart]:
        whole = [torch.cat(prefill.parts()) for prefill in prefills]
        states = pad_sequence(whole, batch_first=True)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        logits = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=_mask([len(one) for one in whole]).to(self.device),
            decoder_input_ids=upload([start] * len(whole), self.device),
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        own = stacked(cache.self_attention_cache)
        source = stacked(cache.cross_attention_cache)
        return [
            DecoderStart(logits[at], own[:, :, at], [{STATES: source[:, :, at, :, : len(one)]}])
            for at, one in enumerate(whole)
        ]


class Seq2SeqRows(SourcedRows):
    """The running batch of an encoder–decoder."""

    def __init__(self, model: Any, positions: SteppedPositions | None, footprint: Footprint) -> None:
        super().__init__(model.device, footprint)
        self._model = model
        self._positions = positions
        self._cache = shared_cache(self._timeline, self._sources, footprint.layers)
        device, dtype = model.device, model.dtype
        hidden = int(model.config.get_text_config().hidden_size)
        # The decoder asks for states to know that there is a source, and for a mask not to make one.
        self._states = BaseModelOutput(
            last_hidden_state=torch.zeros((1, 1, hidden), dtype=dtype, device=device)
        )
        self._visible = torch.zeros((1, 1, 1, 1), dtype=dtype, device=device)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Return scores after every row's token."""
        self._timeline.reserve()
        model = self._model
        if self._positions is not None:
            self._positions.positions = upload(self._timeline.lengths, model.device)[:, None]
        try:
            logits: Tensor = model(
                encoder_outputs=self._states,
                attention_mask=self._visible,
                decoder_input_ids=upload(tokens, model.device)[:, None],
                decoder_attention_mask=step_mask(self._timeline, model.dtype, model.device),
                past_key_values=self._cache,
                use_cache=True,
            ).logits[:, -1]
        finally:
            if self._positions is not None:
                self._positions.positions = None
        self._timeline.advance()
        return logits


def stacked(cache: Any) -> Tensor:
    """Return the keys and values of every layer [K, 2, B, A, L, D]."""
    return torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])


def _mask(lengths: Sequence[int]) -> Tensor:
    ends = torch.tensor(lengths)[:, None]
    return (torch.arange(max(lengths)) < ends).long()


def _stepped(model: Any) -> SteppedPositions | None:
    """Make the decoder's learned positions settable row by row, if it has any."""
    decoder = model.get_decoder()
    inner = getattr(decoder, "embed_positions", None)
    if isinstance(inner, SteppedPositions):
        return inner
    if not isinstance(inner, nn.Embedding):
        return None
    decoder.embed_positions = SteppedPositions(inner)
    return cast(SteppedPositions, decoder.embed_positions)
