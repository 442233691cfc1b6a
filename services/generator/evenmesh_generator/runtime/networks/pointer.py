"""The pointer model in the running batch.

The same arithmetic as :mod:`evenmesh_generator.pointer.modeling`, one token at a time and for many requests
together: what depends on the source alone (cross-attention keys and values, copy keys, each token's share in
the gate) is computed once per passage and kept; beams read one source; and the mixture touches only those
entries of the vocabulary that the source holds.

Shapes: N rows, R requests of w rows in a source group, S source tokens, H hidden, A heads, D head size,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from evenmesh_generator.pointer.mixture import apply_abstention_bias
from evenmesh_generator.pointer.settings import PointerSettings
from evenmesh_generator.runtime.networks.encodings import EncodingStore, content_key
from evenmesh_generator.runtime.networks.linear import Linear
from evenmesh_generator.runtime.networks.pair_encoders import PairEncoder
from evenmesh_generator.runtime.networks.prefills import EncoderPrefill, hand_out, next_rows
from evenmesh_generator.runtime.networks.protocol import DecoderStart, Footprint, Joining, Part, Prompt
from evenmesh_generator.runtime.networks.sources import STATES, SourcedRows, SourceGroup
from evenmesh_kit.compute.placement import upload

_COPY, _GATE, _IDS = "copy", "gate", "ids"
_TINY = torch.finfo(torch.float32).tiny


_ROWS_AT_ONCE = 8
"""Rows of the vocabulary that fit a core's own cache: a megabyte at 30,000 words."""


_BLOCK: Final = 32
"""Tokens that a processor sums in one order, whatever others the batch holds; sources are padded to twice as
many."""


@dataclass(frozen=True)
class _Copy:
    """What some rows copy.

    ``rows`` [M] of the batch; ``spread`` [M, S] the source's tokens, ``probs`` [M, S] their probabilities;
    ``gate`` [M], whose sigmoid is the weight of copying.
    """

    rows: Tensor
    spread: Tensor
    probs: Tensor
    gate: Tensor


@dataclass(frozen=True)
class _Norm:
    """A layer normalisation."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return functional.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)


class _Weights:
    """The weights of a model, by name, as what is computed with them.

    Args:
        dtype: type of the arithmetic.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        settings: PointerSettings,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._weights = weights
        self._eps = settings.layer_norm_eps
        self._device = device
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].detach().to(self._device)

    def linear(self, *names: str, dtype: torch.dtype | None = None, rows: int | None = None) -> Linear:
        """Return one projection of several side by side."""
        return Linear(*self.parts(*names, dtype=dtype), rows=rows)

    def parts(self, *names: str, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Return the weight and the bias of several projections side by side."""
        weight, bias = (
            torch.cat([self[f"{name}.{part}"] for name in names]).to(dtype or self._dtype)
            for part in ("weight", "bias")
        )
        return weight, bias

    def norm(self, name: str, *, dtype: torch.dtype | None = None) -> _Norm:
        return _Norm(
            self[f"{name}.weight"].to(dtype or self._dtype),
            self[f"{name}.bias"].to(dtype or self._dtype),
            self._eps,
        )


class _Layer:
    """One decoder layer's weights."""

    def __init__(self, weights: _Weights, name: str) -> None:
        own, cross = f"{name}.attention", f"{name}.crossattention"
        self.projected = weights.linear(*(f"{own}.self.{part}" for part in ("query", "key", "value")))
        self.own_out = weights.linear(f"{own}.output.dense")
        self.own_norm = weights.norm(f"{own}.output.LayerNorm")
        self.query = weights.linear(f"{cross}.self.query")
        self.cross_out = weights.linear(f"{cross}.output.dense")
        self.cross_norm = weights.norm(f"{cross}.output.LayerNorm")
        self.inner = weights.linear(f"{name}.intermediate.dense")
        self.outer = weights.linear(f"{name}.output.dense")
        self.norm = weights.norm(f"{name}.output.LayerNorm")


class PointerNetwork:
    """A :class:`~evenmesh_generator.runtime.networks.protocol.Network` of the pointer model.

    Args:
        settings: of the model.
        weights: float32, by their names in the model; the encoder's layers are not read.
        device: where it computes.
        dtype: type of the arithmetic.
        cache_bytes: room for encoded passages. Bytes.
        encoder: reads the pairs.
    """

    normalised = True

    def __init__(
        self,
        settings: PointerSettings,
        weights: Mapping[str, Tensor],
        encoder: PairEncoder,
        *,
        device: torch.device,
        dtype: torch.dtype,
        cache_bytes: int,
    ) -> None:
        self.settings = settings
        self.device = device
        self.dtype = dtype
        self._encoder = encoder
        self._store: EncodingStore[Part] = EncodingStore(
            cache_bytes, lambda part: sum(value.nbytes for value in part.values())
        )
        hidden = settings.hidden_size
        self.heads = settings.num_attention_heads
        self.size = hidden // self.heads
        exact = torch.float32  # as in the model: copying and the gate are never rounded
        read = _Weights(weights, settings, device, dtype)
        self.layers = [_Layer(read, f"decoder.layers.{at}") for at in range(settings.decoder_layers)]
        self.words = read["encoder.embeddings.word_embeddings.weight"]
        self.projection = Linear(self.words.to(dtype))
        self.vocab_bias = read["head.vocab_bias"].float()
        self.positions = read["encoder.embeddings.position_embeddings.weight"]
        self.type = read["encoder.embeddings.token_type_embeddings.weight"][0]
        self.tasks = read["decoder.task_embeddings.weight"]
        self.starts = (settings.answer_token_id, settings.relevance_token_id)
        self.norm = read.norm("decoder.norm", dtype=exact)
        self.transform = read.linear("head.transform")
        self.head_norm = read.norm("head.norm")
        on_cpu = device.type == "cpu"
        rows = _ROWS_AT_ONCE if on_cpu else None
        self.copying = read.linear("head.copy_query", "head.successor", dtype=exact, rows=rows)
        gate, bias = read.parts("head.gate", dtype=exact)
        self.gate_state = Linear(gate[:, :hidden], bias, rows=rows)
        self.block = _BLOCK if on_cpu else 1
        self.gate_context = gate[0, hidden:]
        size = torch.empty(0, dtype=dtype).element_size()
        own = 2 * len(self.layers) * hidden * size
        source = own + hidden * size + 12
        self.footprint = Footprint(own=own, source=source, read=source, layers=len(self.layers))

    def prefill(self, prompt: Prompt) -> EncoderPrefill[Part]:
        """Start to read a prompt."""
        keys = [
            content_key((head, *row), tenant=prompt.tenant)
            for head, row in zip(prompt.heads, prompt.rows, strict=True)
        ]
        return EncoderPrefill(prompt, keys)

    def advance(self, prefills: Sequence[EncoderPrefill[Part]], most_tokens: int) -> None:
        """Encode missing rows."""
        wanted = next_rows(prefills, self._store, most_tokens)
        keys = list(wanted)
        rows = [row for row, _ in wanted.values()]
        heads = [waiting[0].prompt.heads[waiting[0].row(key)] for key, (_, waiting) in wanted.items()]
        for at, pair in self._encoder.encode(rows, heads):
            part = {
                STATES: pair.projected,
                _COPY: pair.copy_keys,
                _GATE: pair.states.float() @ self.gate_context,
                _IDS: torch.tensor(rows[at], device=self.device),
            }
            self._store.put(keys[at], part, wanted[keys[at]][1][0].prompt.tenant)
            hand_out(keys[at], part, wanted[keys[at]][1])

    def begin(self, prefills: Sequence[EncoderPrefill[Part]]) -> list[DecoderStart]:
        """Return empty states: the next step selects the first token."""
        empty = torch.empty(
            (len(self.layers), 2, self.heads, 0, self.size), dtype=self.dtype, device=self.device
        )
        return [DecoderStart(None, empty, one.parts()) for one in prefills]

    def judge(self, prefills: Sequence[EncoderPrefill[Part]]) -> Tensor:
        """Return the log-probabilities [B, V] of the first token."""
        rows = self.rows()
        rows.join([Joining(owner, started, 1, 1) for owner, started in enumerate(self.begin(prefills))])
        starts = [one.prompt.start[0] for one in prefills]
        return rows.step(starts)

    def rows(self) -> PointerRows:
        """Return an empty batch."""
        return PointerRows(self)

    def counts(self) -> tuple[int, int, int]:
        """Return the bytes of encodings kept, encodings found, encodings not found."""
        return self._store.counts()


class PointerRows(SourcedRows):
    """The running batch of the pointer model."""

    def __init__(self, network: PointerNetwork) -> None:
        super().__init__(network.device, network.footprint)
        self._network = network
        self._copied = torch.zeros(0)

    def step(self, written: Sequence[int]) -> Tensor:
        """Return the log-probabilities [N, V] of the mixture after every row's token."""
        net = self._network
        tokens = upload(written, net.device)
        timeline = self._timeline
        timeline.reserve()
        positions = upload(timeline.lengths, net.device)
        hidden = net.words[tokens] + net.positions[positions] + net.type
        for task, start in enumerate(net.starts):
            hidden = hidden + (tokens == start).unsqueeze(-1) * net.tasks[task]
        hidden = net.norm(hidden).to(net.dtype)
        mask = timeline.mask(net.dtype, block=net.block)
        scale = net.size**-0.5
        rows = len(tokens)
        for index, layer in enumerate(net.layers):
            query, key, value = layer.projected(hidden).view(rows, 3, net.heads, 1, net.size).unbind(1)
            keys, values = timeline.write(index, key, value, block=net.block)
            own = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
            hidden = layer.own_norm(layer.own_out(own.reshape(rows, -1)) + hidden)
            query = layer.query(hidden).view(rows, net.heads, 1, net.size)
            read = self._sources.attend(index, query, scale)
            hidden = layer.cross_norm(layer.cross_out(read.reshape(rows, -1)) + hidden)
            hidden = layer.norm(layer.outer(functional.gelu(layer.inner(hidden))) + hidden)
        timeline.advance()
        begins = [row for row, token in enumerate(written) if token == net.starts[0]]
        return self._mixture(hidden, tokens, begins)

    def _mixture(self, hidden: Tensor, tokens: Tensor, begins: Sequence[int]) -> Tensor:
        net = self._network
        transformed = net.head_norm(functional.gelu(net.transform(hidden)))
        logits = net.projection(transformed)
        states = hidden.float()
        copying = net.copying(states)
        query, favour = copying[:, :-1] * states.shape[-1] ** -0.5, copying[:, -1]
        gate = net.gate_state(states)[:, 0]
        copies = [self._copy(group, query, favour, gate, tokens) for group in self._sources.groups]
        generating = torch.empty_like(gate)
        for copy in copies:
            generating[copy.rows] = functional.logsigmoid(-copy.gate)
        mixed = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        for begin in range(0, len(logits), _ROWS_AT_ONCE):
            some = mixed[begin : begin + _ROWS_AT_ONCE]
            some.copy_(logits[begin : begin + _ROWS_AT_ONCE]).add_(net.vocab_bias)
            some.add_((generating[begin : begin + _ROWS_AT_ONCE] - some.logsumexp(-1))[:, None])
        if self._copied.shape != mixed.shape:
            self._copied = torch.zeros_like(mixed)
        for copy in copies:
            self._mix(copy, mixed)
        if begins and net.settings.abstention_bias:
            rows = upload(begins, net.device)
            mixed[rows] = apply_abstention_bias(
                mixed[rows],
                tokens[rows],
                bias=net.settings.abstention_bias,
                start=net.starts[0],
                abstention=net.settings.abstention_token_id,
            )
        return mixed

    def _copy(self, group: SourceGroup, query: Tensor, favour: Tensor, gate: Tensor, tokens: Tensor) -> _Copy:
        """Return what the rows of a source group copy."""
        rows = group.index
        if rows is None:
            rows = torch.arange(len(tokens), device=tokens.device)
        else:
            query, favour, gate, tokens = query[rows], favour[rows], gate[rows], tokens[rows]
        width = group.width
        ids = group.field(_IDS)
        scores = _products(query.view(-1, width, query.shape[-1]), group.field(_COPY), group.lengths)
        before = functional.pad(ids[:, :-1], (1, 0), value=-1)
        follows = before[:, None, :] == tokens.view(-1, width, 1)
        scores = scores + favour.view(-1, width, 1) * follows
        visible = group.visible
        if visible is not None:
            scores = scores.masked_fill(~visible[:, None, :], float("-inf"))
        probs = scores.softmax(-1)
        gate = gate.view(-1, width) + _expected(probs, group.field(_GATE))
        spread = ids[:, None, :].expand(-1, width, -1).reshape(len(rows), -1)
        return _Copy(rows, spread, probs.reshape(len(rows), -1), gate.reshape(-1))

    def _mix(self, copy: _Copy, mixed: Tensor) -> None:
        """Add what is copied to ``mixed``, which holds what is generated."""
        places = (copy.rows[:, None] * mixed.shape[1] + copy.spread).reshape(-1)
        # A vocabulary of zeros is kept, and cleared where it was used.
        copied, flat = self._copied.view(-1), mixed.view(-1)
        share = copied.scatter_add_(0, places, copy.probs.reshape(-1)).gather(0, places)
        copied.scatter_(0, places, 0.0)
        copying = functional.logsigmoid(copy.gate)[:, None].expand_as(copy.probs).reshape(-1)
        together = torch.logaddexp(flat.gather(0, places), copying + share.clamp_min(_TINY).log())
        flat.scatter_(0, places, together)


def _expected(probs: Tensor, values: Tensor) -> Tensor:
    """Return the means [R, w] of ``values`` [R, S] by ``probs`` [R, w, S], which are 0 on padding.

    On a processor they are sums of whole blocks one after the other, as a product with a longer source, or
    of more requests, rounds otherwise.
    """
    if probs.device.type != "cpu":
        return (probs @ values[:, :, None])[:, :, 0]
    blocks = (probs * values[:, None, :]).view(*probs.shape[:2], -1, _BLOCK).sum(-1)
    total: Tensor = blocks[..., 0]
    for at in range(1, blocks.shape[-1]):
        total = total + blocks[..., at]
    return total


def _products(queries: Tensor, keys: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the float32 products [R, w, S] of ``queries`` [R, w, H] and ``keys`` [R, S, H]; any on padding.

    Args:
        lengths: tokens of each source.
    """
    if keys.device.type != "cpu" or keys.dtype is torch.float32:
        return queries @ keys.float().transpose(1, 2)
    # A source at a time, so that its keys in float32 stay in a core's own cache.
    found = queries.new_zeros((*queries.shape[:2], keys.shape[1]))
    for at, length in enumerate(lengths):
        found[at, :, :length] = queries[at] @ keys[at, :length].float().T
    return found
