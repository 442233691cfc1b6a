"""Encoder–decoders of the transformers library in the running batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from meshkit.lengths import by_length
from services.generator.runtime.attention import SteppedPositions, shared_cache, step_mask
from services.generator.runtime.encodings import EncodingStore, content_key
from services.generator.runtime.networks import Begun, Footprint, Prompt, Reading
from services.generator.runtime.passes import EncodedReading, hand_out, next_rows
from services.generator.runtime.sources import STATES, Sources
from services.generator.runtime.timeline import Timeline


class Seq2SeqNetwork:
    """A :class:`~services.generator.runtime.networks.Network`; each row is encoded once and kept.

    Args:
        pad: token that fills rows.
        batch_tokens: most padded tokens of a pass.
        cache_bytes: room for encoder states.
    """

    normalised = False

    def __init__(self, model: PreTrainedModel, *, pad: int, batch_tokens: int, cache_bytes: int) -> None:
        self._model: Any = model
        self._pad = pad
        self._batch_tokens = batch_tokens
        self._store: EncodingStore[Tensor] = EncodingStore(cache_bytes, lambda states: states.nbytes)
        self._positions = _stepped(model)
        config = model.config.get_text_config()
        layers = int(getattr(config, "num_decoder_layers", None) or config.decoder_layers)
        hidden = int(config.hidden_size)
        size = torch.empty(0, dtype=model.dtype).element_size()
        self.footprint = Footprint(2 * layers * hidden * size, 2 * layers * hidden * size)
        self.layers = layers

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return cast(torch.device, self._model.device)

    def read(self, prompt: Prompt) -> EncodedReading[Tensor]:
        """Begins to read."""
        return EncodedReading(prompt, [content_key(row) for row in prompt.rows])

    def advance(self, readings: Sequence[Reading], most_tokens: int) -> None:
        """Encodes missing rows."""
        mine = cast("Sequence[EncodedReading[Tensor]]", readings)
        wanted = next_rows(mine, self._store, most_tokens)
        rows = [row for row, _ in wanted.values()]
        keys = list(wanted)
        for chosen in by_length([len(row) for row in rows], self._batch_tokens):
            states = self._encode([rows[at] for at in chosen])
            for place, at in enumerate(chosen):
                one = states[place, : len(rows[at])].clone()
                self._store.put(keys[at], one)
                hand_out(keys[at], one, wanted[keys[at]][1])

    def begin(self, readings: Sequence[Reading]) -> list[Begun]:
        """Runs the decoder over what it is given to begin with; like lengths together."""
        mine = cast("Sequence[EncodedReading[Tensor]]", readings)
        begun: list[Begun | None] = [None] * len(mine)
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, reading in enumerate(mine):
            groups.setdefault(reading.prompt.start, []).append(at)
        for start, members in groups.items():
            lengths = [mine[at].prompt.tokens for at in members]
            for chosen in by_length(lengths, self._batch_tokens):
                picked = [members[at] for at in chosen]
                for at, one in zip(picked, self._begin([mine[at] for at in picked], start), strict=True):
                    begun[at] = one
        return [one for one in begun if one is not None]

    def judge(self, readings: Sequence[Reading]) -> Tensor:
        """Scores [B, V] of the first token."""
        return torch.stack([one.logits for one in self.begin(readings) if one.logits is not None])

    def rows(self) -> Seq2SeqRows:
        """An empty batch."""
        return Seq2SeqRows(self._model, self._positions, self.layers)

    def forget(self) -> None:
        """Forgets what is kept, and how often it was asked for."""
        self._store.clear()
        self._store.hits = self._store.misses = 0

    def counts(self) -> tuple[int, int, int]:
        """Bytes of encodings kept, encodings found, encodings not found."""
        return self._store.size, self._store.hits, self._store.misses

    def _encode(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """Encoder states [B, L, H]."""
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=self._pad)
        mask = _mask([len(row) for row in rows])
        encoder = self._model.get_encoder()
        states: Tensor = encoder(
            input_ids=ids.to(self.device), attention_mask=mask.to(self.device)
        ).last_hidden_state
        return states

    def _begin(self, readings: Sequence[EncodedReading[Tensor]], start: tuple[int, ...]) -> list[Begun]:
        whole = [torch.cat(reading.parts()) for reading in readings]
        states = pad_sequence(whole, batch_first=True)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        logits = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=_mask([len(one) for one in whole]).to(self.device),
            decoder_input_ids=torch.tensor([start] * len(whole), device=self.device),
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        own = stacked(cache.self_attention_cache)
        source = stacked(cache.cross_attention_cache)
        return [
            Begun(logits[at], own[:, :, at], [{STATES: source[:, :, at, :, : len(one)]}])
            for at, one in enumerate(whole)
        ]


class Seq2SeqRows:
    """The running batch of an encoder–decoder."""

    def __init__(self, model: Any, positions: SteppedPositions | None, layers: int) -> None:
        self._model = model
        self._positions = positions
        self._timeline = Timeline()
        self._sources = Sources()
        self._widths: dict[int, list[int]] = {}
        self._cache = shared_cache(self._timeline, self._sources, layers)
        device, dtype = model.device, model.dtype
        hidden = int(model.config.get_text_config().hidden_size)
        # The decoder asks for states to know that there is a source, and for a mask not to make one.
        self._states = BaseModelOutput(
            last_hidden_state=torch.zeros((1, 1, hidden), dtype=dtype, device=device)
        )
        self._visible = torch.zeros((1, 1, 1, 1), dtype=dtype, device=device)

    def join(self, owner: int, begun: Begun, width: int) -> None:
        """Adds a request's rows."""
        at = len(self._timeline)
        self._timeline.insert(begun.kept, width)
        self._sources.add(owner, width, begun.parts)
        self._widths[owner] = list(range(at, at + width))
        self._sources.place(self._widths, self._model.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Scores after every row's token."""
        self._timeline.reserve()
        model = self._model
        if self._positions is not None:
            self._positions.positions = torch.tensor(self._timeline.lengths, device=model.device)[:, None]
        try:
            logits: Tensor = model(
                encoder_outputs=self._states,
                attention_mask=self._visible,
                decoder_input_ids=tokens[:, None],
                decoder_attention_mask=step_mask(self._timeline, model.dtype, model.device),
                past_key_values=self._cache,
                use_cache=True,
            ).logits[:, -1]
        finally:
            if self._positions is not None:
                self._positions.positions = None
        self._timeline.advance()
        return logits

    def settle(
        self, sources: Sequence[int], rows: Mapping[int, Sequence[int]], left: Mapping[int, int]
    ) -> None:
        """Rearranges rows."""
        self._timeline.rearrange(sources)
        self._widths = {owner: list(mine) for owner, mine in rows.items()}
        for owner, width in left.items():
            self._sources.remove(owner, width)
        if self._widths:
            self._sources.place(self._widths, self._model.device)

    @property
    def bytes(self) -> int:
        """Size of what is held."""
        return self._timeline.bytes + self._sources.bytes


def stacked(cache: Any) -> Tensor:
    """Keys and values of every layer [K, 2, B, A, L, D]."""
    return torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])


def _mask(lengths: Sequence[int]) -> Tensor:
    ends = torch.tensor(lengths)[:, None]
    return (torch.arange(max(lengths)) < ends).long()


def _stepped(model: Any) -> SteppedPositions | None:
    """Lets the decoder's learned positions be given row by row, if it has such."""
    decoder = model.get_decoder()
    inner = getattr(decoder, "embed_positions", None)
    if isinstance(inner, SteppedPositions):
        return inner
    if not isinstance(inner, nn.Embedding):
        return None
    decoder.embed_positions = SteppedPositions(inner)
    return cast(SteppedPositions, decoder.embed_positions)
