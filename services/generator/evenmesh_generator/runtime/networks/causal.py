"""Decoder-only models of the transformers library in the running batch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from evenmesh_generator.runtime.networks.attention import own_cache, step_mask
from evenmesh_generator.runtime.networks.encodings import EncodingStore, content_key
from evenmesh_generator.runtime.networks.footprints import decoder_only
from evenmesh_generator.runtime.networks.protocol import DecoderStart, Demand, Footprint, Joining, Prompt
from evenmesh_generator.runtime.networks.seq2seq import stacked
from evenmesh_generator.runtime.networks.timeline import Timeline
from evenmesh_kit.compute.lengths import rows_at_once
from evenmesh_kit.compute.placement import upload

BLOCK = 32
"""Tokens of a prompt kept together; a prefix is reused in whole blocks."""


class PrefixPrefill:
    """A prompt read from left to right, in chunks; what another prompt began with is not read again."""

    def __init__(self, prompt: Prompt) -> None:
        (self.ids,) = prompt.rows
        self.prompt = prompt
        self.computed = 0
        self.reused = 0
        self.found: list[Tensor] = []
        """Kept blocks that it begins with, until it is read on: not copied, as many prompts may wait."""
        self.asked = 0
        """Blocks looked for among what is kept: to count each once."""
        self.kept: Tensor | None = None
        """Keys and values [K, 2, A, L, D] of what was read."""
        self.logits: Tensor | None = None
        self.keys: list[bytes] = []
        """Chained hash of every whole block, so that a key stands for all up to its block."""
        for begin in range(0, len(self.ids) - BLOCK + 1, BLOCK):
            before = self.keys[-1] if self.keys else b""
            self.keys.append(content_key(self.ids[begin : begin + BLOCK], after=before, tenant=prompt.tenant))

    @property
    def read(self) -> int:
        """Return the tokens read so far."""
        return len(self.found) * BLOCK if self.kept is None else int(self.kept.shape[3])

    @property
    def done(self) -> bool:
        """Return whether all was read."""
        return self.logits is not None


class CausalNetwork:
    """A :class:`~evenmesh_generator.runtime.networks.protocol.Network` that reuses prefixes of prompts.

    Args:
        pad: token that fills rows.
        batch_tokens: most padded tokens of a pass.
        cache_bytes: room for keys and values of prefixes.
    """

    normalised = False

    def __init__(self, model: PreTrainedModel, *, pad: int, batch_tokens: int, cache_bytes: int) -> None:
        self._model: Any = model
        self._pad = pad
        self._rows = rows_at_once(str(model.device))
        self._batch_tokens = batch_tokens
        self._store: EncodingStore[Tensor] = EncodingStore(cache_bytes, lambda block: block.nbytes)
        accepted = inspect.signature(model.forward).parameters
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._positions = "position_ids" in accepted
        self.footprint = decoder_only(model)
        self.layers = self.footprint.layers

    @property
    def device(self) -> torch.device:
        """Return the device it computes on."""
        return cast(torch.device, self._model.device)

    def prefill(self, prompt: Prompt) -> PrefixPrefill:
        """Start to read a prompt."""
        return PrefixPrefill(prompt)

    def advance(self, prefills: Sequence[PrefixPrefill], most_tokens: int) -> None:
        """Compute one pass over prompts that have been read equally far."""
        waiting = [one for one in prefills if not one.done]
        for prefill in waiting:
            if prefill.kept is None:
                self._find(prefill)
        group: list[PrefixPrefill] = []
        longest = 0
        coming: set[bytes] = set()
        for prefill in waiting:
            left = min(len(prefill.ids) - prefill.read, most_tokens)
            if group and (prefill.read != group[0].read or len(group) == self._rows):
                continue
            longest_then = max(longest, left)
            if group and longest_then * (len(group) + 1) > min(most_tokens, self._batch_tokens):
                continue
            block = prefill.read // BLOCK
            next_key = prefill.keys[block] if block < len(prefill.keys) else None
            if next_key is not None and self._store.most_bytes and next_key in coming:
                continue  # another prefill reads the same block now: it will be there at the next pass
            if next_key is not None:
                coming.add(next_key)
            group.append(prefill)
            longest = longest_then
        if group:
            self._read_on(group, most_tokens)

    def begin(self, prefills: Sequence[PrefixPrefill]) -> list[DecoderStart]:
        """Return what was found at the end of each prompt."""
        found = []
        for prefill in prefills:
            assert prefill.logits is not None and prefill.kept is not None, "read to its end"  # noqa: S101, PT018
            found.append(DecoderStart(prefill.logits, prefill.kept))
        return found

    def judge(self, prefills: Sequence[PrefixPrefill]) -> Tensor:
        """Return scores [B, V] of the first token."""
        return torch.stack([one.logits for one in self.begin(prefills) if one.logits is not None])

    def rows(self) -> CausalRows:
        """Return an empty batch."""
        return CausalRows(self._model, self.footprint, positions=self._positions)

    def forget(self) -> None:
        """Clear the cache and its counts."""
        self._store.clear()

    def counts(self) -> tuple[int, int, int]:
        """Return the bytes of encodings kept, encodings found, encodings not found."""
        return self._store.counts()

    def _find(self, prefill: PrefixPrefill) -> None:
        """Look for the longest known prefix; the last token is always computed."""
        for at in range(len(prefill.found), (len(prefill.ids) - 1) // BLOCK):
            block = self._store.get(prefill.keys[at], prefill.prompt.tenant, count=at >= prefill.asked)
            prefill.asked = max(prefill.asked, at + 1)
            if block is None:
                break
            prefill.found.append(block)

    def _read_on(self, group: Sequence[PrefixPrefill], most_tokens: int) -> None:
        before = group[0].read
        for prefill in group:
            if prefill.found:
                prefill.kept, prefill.reused, prefill.found = torch.cat(prefill.found, 3), before, []
        chunks = [one.ids[before : before + most_tokens] for one in group]
        longest = max(map(len, chunks))
        device = self.device
        ids = torch.tensor([[self._pad] * (longest - len(chunk)) + list(chunk) for chunk in chunks])
        blank = torch.tensor([longest - len(chunk) for chunk in chunks])[:, None]
        cache = DynamicCache()
        if before:
            past = torch.stack([one.kept for one in group if one.kept is not None], 2)
            for layer in range(self.layers):
                cache.update(past[layer, 0], past[layer, 1], layer)
        more: dict[str, Any] = {}
        if bool(blank.any()):
            new = torch.arange(longest) >= blank
            mask = torch.cat([torch.ones((len(group), before), dtype=torch.bool), new], 1)
            more["attention_mask"] = mask.long().to(device)
        if self._positions:
            positions = before + (torch.arange(longest) - blank).clamp_min(0)
            more["position_ids"] = positions.to(device)
        logits = self._model(
            input_ids=ids.to(device), past_key_values=cache, use_cache=True, **more, **self._last
        ).logits[:, -1]
        whole = stacked(cache)
        for at, (prefill, chunk) in enumerate(zip(group, chunks, strict=True)):
            fresh = whole[:, :, at, :, whole.shape[4] - len(chunk) :]
            prefill.kept = fresh.clone() if prefill.kept is None else torch.cat([prefill.kept, fresh], 3)
            prefill.computed += len(chunk)
            self._keep(prefill, before)
            if prefill.read == len(prefill.ids):
                prefill.logits = logits[at]

    def _keep(self, prefill: PrefixPrefill, before: int) -> None:
        kept = prefill.kept
        assert kept is not None, "something was read"  # noqa: S101
        if not self._store.most_bytes:
            return
        for at in range(before // BLOCK, prefill.read // BLOCK):
            key, tenant = prefill.keys[at], prefill.prompt.tenant
            if self._store.get(key, tenant, count=False) is None:
                self._store.put(key, kept[:, :, :, at * BLOCK : (at + 1) * BLOCK].clone(), tenant)


class CausalRows:
    """The running batch of a decoder-only model."""

    def __init__(self, model: Any, footprint: Footprint, *, positions: bool) -> None:
        self._model = model
        self._footprint = footprint
        self._positions = positions
        self._timeline = Timeline.on(model.device)
        self._cache = own_cache(self._timeline, footprint.layers)

    def planned(self, joining: Sequence[Demand]) -> int:
        """Return the most bytes that the batch has while and after these requests join."""
        return self._footprint.batch(self._timeline.planned([(one.rows, one.own) for one in joining]), 0)

    def join(self, joining: Sequence[Joining]) -> None:
        """Add requests' rows at the end: all, or none if there is no memory for them."""
        self._timeline.insert([(one.started.kept, one.width, one.most) for one in joining])

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Return scores after every row's token."""
        self._timeline.reserve()
        model = self._model
        more = {}
        if self._positions:
            more["position_ids"] = upload(self._timeline.lengths, model.device)[:, None]
        logits: Tensor = model(
            input_ids=upload(tokens, model.device)[:, None],
            attention_mask=step_mask(self._timeline, model.dtype, model.device),
            past_key_values=self._cache,
            use_cache=True,
            **more,
        ).logits[:, -1]
        self._timeline.advance()
        return logits

    def settle(
        self, sources: Sequence[int], rows: Mapping[int, Sequence[int]], left: Mapping[int, int]
    ) -> None:
        """Rearrange rows."""
        self._timeline.rearrange(sources)

    @property
    def bytes(self) -> int:
        """Return the size of the held data."""
        return self._timeline.bytes
