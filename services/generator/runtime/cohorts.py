"""Models whose rows cannot join midway: those who wait start together, with the library's own cache.

For architectures that keep more, or other, state than keys and values of every token (sliding windows,
recurrences, positions counted from the mask). Rows still leave early.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from services.generator.runtime.networks import Begun, Footprint, Prompt, Reading
from services.generator.runtime.passes import EncodedReading
from services.generator.runtime.seq2seq import Seq2SeqNetwork
from services.generator.runtime.sources import STATES

_NOTHING = torch.empty(0)


class WholeReading:
    """A prompt that is read when its answer begins."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.computed = prompt.tokens
        self.reused = 0
        self.done = True


class CausalCohorts:
    """A :class:`~services.generator.runtime.networks.Network` of a decoder-only model."""

    normalised = False

    def __init__(self, model: PreTrainedModel, *, pad: int) -> None:
        self.model: Any = model
        self.pad = pad
        self.footprint = Footprint(0, 0)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return cast(torch.device, self.model.device)

    def read(self, prompt: Prompt) -> WholeReading:
        """There is nothing to read before."""
        return WholeReading(prompt)

    def advance(self, readings: Sequence[Reading], most_tokens: int) -> None:
        """There is nothing to read before."""

    def begin(self, readings: Sequence[Reading]) -> list[Begun]:
        """The first step reads the prompts."""
        ids = [torch.tensor(one.prompt.rows[0]) for one in readings]
        return [Begun(None, _NOTHING, [{STATES: one}]) for one in ids]

    def judge(self, readings: Sequence[Reading]) -> Tensor:
        """Scores of the first token."""
        return _judged(self, readings)

    def rows(self) -> CohortRows:
        """An empty batch."""
        return CohortRows(self.model, self.pad)

    def counts(self) -> tuple[int, int, int]:
        """Nothing is kept."""
        return 0, 0, 0


class Seq2SeqCohorts(Seq2SeqNetwork):
    """A :class:`~services.generator.runtime.networks.Network` of an encoder–decoder."""

    def begin(self, readings: Sequence[Reading]) -> list[Begun]:
        """The first step runs the decoder."""
        mine = cast("Sequence[EncodedReading[Tensor]]", readings)
        return [Begun(None, _NOTHING, [{STATES: torch.cat(one.parts())}]) for one in mine]

    def judge(self, readings: Sequence[Reading]) -> Tensor:
        """Scores of the first token."""
        return torch.stack([one.logits for one in super().begin(readings) if one.logits is not None])

    def rows(self) -> CohortRows:  # type: ignore[override]
        """An empty batch."""
        return CohortRows(self._model, self._pad)


class CohortRows:
    """A batch whose rows all joined before its first step."""

    def __init__(self, model: Any, pad: int) -> None:
        self._model = model
        self._pad = pad
        self._encodes = bool(model.config.is_encoder_decoder)
        self._positions = "position_ids" in inspect.signature(model.forward).parameters
        self._joined: list[Tensor] = []
        self._states: Tensor | None = None
        self._mask = _NOTHING
        self._cache: Any = None

    def join(self, owner: int, begun: Begun, width: int) -> None:
        """Adds a request's rows, before the first step."""
        assert self._cache is None, "the batch is running"  # noqa: S101
        self._joined += [begun.parts[0][STATES]] * width

    def step(self, tokens: Tensor) -> Tensor:
        """Scores after every row's token; the first step reads the prompts."""
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
        """Rearranges rows."""
        if not sources:
            self._joined, self._states, self._cache = [], None, None
            return
        if list(sources) == list(range(len(self._mask))):
            return
        index = torch.tensor(sources, device=self._mask.device)
        self._mask = self._mask[index]
        if self._states is not None:
            self._states = self._states[index]
        self._cache.reorder_cache(index)

    @property
    def bytes(self) -> int:
        """Not known: the cache is the library's."""
        return 0

    def _step_encoded(self, tokens: Tensor) -> Tensor:
        if self._states is None:
            self._states = pad_sequence(self._joined, batch_first=True)
            ends = torch.tensor([len(one) for one in self._joined], device=tokens.device)[:, None]
            at = torch.arange(self._states.shape[1], device=tokens.device)
            self._mask = (at < ends).long()
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


def _judged(network: CausalCohorts, readings: Sequence[Reading]) -> Tensor:
    rows = network.rows()
    for owner, begun in enumerate(network.begin(readings)):
        rows.join(owner, begun, 1)
    return rows.step(torch.zeros(len(readings), dtype=torch.long, device=network.device))
