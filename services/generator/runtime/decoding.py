"""Choosing tokens with any transformers generation model: greedy, sampled, beam search.

``transformers`` runs the steps (``GenerationMixin.generate``), so that outputs are those of plain
``model.generate``; what is added is done between its steps: the model's own log-probabilities are read
before any processor touches them, sampling draws from a generator of the request's own, tokens are handed
out as they come, and a request that nobody waits for stops at the next token.
"""

from __future__ import annotations

import copy
import inspect
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.utils.generic import ModelOutput

from services.generator.domain import Decoding
from services.generator.ports import Cancellation

OnToken = Callable[[int], None]

_MOST_LOGITS = 2**26
"""Most scores held at once when answers are scored again: 256 MiB."""


@dataclass(frozen=True, slots=True)
class Written:
    """One row's new tokens.

    ``text_ids``: those of the text; ``tokens``: how many there are with the end token, if one was written;
    ``log_probability`` of all of them, in nats; ``ended``: the model ended, rather than ran out of length.
    """

    text_ids: tuple[int, ...]
    tokens: int
    log_probability: float
    ended: bool


class Sampler:
    """Draws tokens of one request: temperature, then nucleus (Holtzman et al., 2020, section 3.1).

    The same seed and stream give the same draws whatever else runs: uniform numbers come from a generator of
    the request's own and pick by inverse distribution, most probable token first.

    Args:
        stream_id: names the request among those of the same seed.
    """

    def __init__(self, decoding: Decoding, stream_id: str) -> None:
        self._temperature = decoding.temperature
        self._top_p = decoding.top_p
        self._rng = np.random.default_rng([decoding.seed, zlib.crc32(stream_id.encode())])

    def draw(self, scores: Tensor) -> int:
        """A token by ``scores`` [V], unnormalised log-probabilities."""
        probabilities = (scores.double() / self._temperature).softmax(-1)
        ordered, tokens = probabilities.sort(descending=True, stable=True)
        mass = ordered.cumsum(-1)
        # The smallest set whose mass reaches top_p: up to and with the first token that reaches it.
        kept = int(torch.searchsorted(mass, self._top_p * float(mass[-1]))) + 1
        kept = min(kept, len(mass))
        point = self._rng.random() * float(mass[kept - 1])
        return int(tokens[min(int(torch.searchsorted(mass, point, right=True)), kept - 1)])


class _Observer(LogitsProcessor):
    """Stands first among the processors and keeps the step's log-probabilities [B, V]."""

    def __init__(self) -> None:
        self.log_probs = torch.empty(0)

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        self.log_probs = scores.float().log_softmax(-1)
        return scores


class _Chooser(LogitsProcessor):
    """Stands last and leaves a sampled row one token to choose; greedy rows (None) stay as they are."""

    def __init__(self, samplers: Sequence[Sampler | None]) -> None:
        self._samplers = samplers

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        for row, sampler in enumerate(self._samplers):
            if sampler is not None:
                token = sampler.draw(scores[row])
                scores[row] = -math.inf
                scores[row, token] = 0.0
        return scores


class _Collector(StoppingCriteria):
    """Sees every new token: stops for who has gone, collects tokens and their log-probabilities."""

    def __init__(
        self,
        observer: _Observer,
        rows: int,
        ends: frozenset[int],
        cancel: Cancellation,
        on_token: OnToken | None,
    ) -> None:
        self._observer = observer
        self._ends = ends
        self._cancel = cancel
        self._on_token = on_token
        self.ids: list[list[int]] = [[] for _ in range(rows)]
        self.log_probabilities = [0.0] * rows
        self.ended = [False] * rows

    def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        self._cancel.check()
        last = input_ids[:, -1]
        gained = self._observer.log_probs.gather(-1, last[:, None])[:, 0].tolist()
        for row, token in enumerate(last.tolist()):
            if self.ended[row]:
                continue
            self.ids[row].append(token)
            self.log_probabilities[row] += gained[row]
            self.ended[row] = token in self._ends
            if self._on_token is not None and row == 0 and not self.ended[row]:
                self._on_token(token)
        return torch.zeros(len(last), dtype=torch.bool, device=last.device)


class _Watcher(StoppingCriteria):
    """Stops beam search for who has gone."""

    def __init__(self, cancel: Cancellation) -> None:
        self._cancel = cancel

    def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        self._cancel.check()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Decoder:
    """Writes tokens with one model. Safe to use from several threads at once.

    The model's own generation settings stay in force (length penalty, forced and forbidden tokens), except
    those for sampling: how to draw is the request's choice.
    """

    def __init__(self, model: PreTrainedModel, *, pad: int, ends: Sequence[int]) -> None:
        """``pad``: token that fills finished rows; ``ends``: tokens that end an answer."""
        self._model: Any = model  # the library's `generate` is typed by protocols its own models do not meet
        self._pad = pad
        self._ends = frozenset(ends)
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        settings = self._model.generation_config
        settings.do_sample = False
        settings.max_length = None
        for unused in ("temperature", "top_p", "top_k", "min_p", "typical_p"):
            setattr(settings, unused, None)

    @torch.inference_mode()
    def write(
        self,
        inputs: Mapping[str, Any],
        decodings: Sequence[Decoding],
        stream_ids: Sequence[str],
        cancel: Cancellation,
        on_token: OnToken | None = None,
    ) -> list[Written]:
        """Writes one answer per row of ``inputs``, the keyword arguments of ``model.generate``.

        An encoder–decoder gets ``encoder_outputs``, ``attention_mask`` and ``decoder_input_ids``; a
        decoder-only model ``input_ids`` and ``attention_mask``, padded on the left.

        Args:
            decodings: how to decode each row; beams and ``max_new_tokens`` are alike in all.
            stream_ids: names each row's random stream.
            on_token: gets each token of the first row as it comes, the end token not; never with beams.

        Raises:
            Cancelled: nobody waits any more; raised before the next step.
            DeadlineExceeded: likewise.
        """
        cancel.check()
        if decodings[0].num_beams > 1:
            return self._search(inputs, decodings[0], cancel)
        samplers = [
            Sampler(decoding, stream) if decoding.temperature > 0 else None
            for decoding, stream in zip(decodings, stream_ids, strict=True)
        ]
        observer = _Observer()
        collector = _Collector(observer, len(decodings), self._ends, cancel, on_token)
        self._step(inputs, observer, _Chooser(samplers), collector, decodings[0].max_new_tokens)
        most = decodings[0].max_new_tokens
        return [
            self._written(ids, log_probability, most)
            for ids, log_probability in zip(collector.ids, collector.log_probabilities, strict=True)
        ]

    @torch.inference_mode()
    def next_log_probs(self, inputs: Mapping[str, Any], cancel: Cancellation) -> Tensor:
        """The model's log-probabilities [B, V] of the first new token, float32.

        Raises:
            Cancelled: nobody waits any more.
            DeadlineExceeded: likewise.
        """
        cancel.check()
        observer = _Observer()
        self._step(inputs, observer, _Chooser(()), _Watcher(cancel), 1)
        return observer.log_probs

    def _step(
        self,
        inputs: Mapping[str, Any],
        observer: _Observer,
        chooser: _Chooser,
        criterion: StoppingCriteria,
        max_new_tokens: int,
    ) -> None:
        def one_by_one(
            model: Any, input_ids: Tensor, logits_processor: LogitsProcessorList, **kwargs: Any
        ) -> Any:
            # `generate` puts what it is given behind the model's own processors; raw scores are in front.
            return type(model)._sample(
                model, input_ids, LogitsProcessorList([observer, *logits_processor, chooser]), **kwargs
            )

        self._generate(inputs, max_new_tokens, 1, criterion, custom_generate=one_by_one)

    def _search(self, inputs: Mapping[str, Any], decoding: Decoding, cancel: Cancellation) -> list[Written]:
        found = self._generate(inputs, decoding.max_new_tokens, decoding.num_beams, _Watcher(cancel))
        cancel.check()
        prompt = _prompt(inputs).shape[1]
        rows: list[list[int]] = []
        for row in found[:, prompt:].tolist():
            end = next((at for at, token in enumerate(row) if token in self._ends), len(row))
            rows.append(row[: end + 1])
        totals = self._log_probabilities(inputs, found, [len(row) for row in rows])
        most = decoding.max_new_tokens
        return [self._written(row, total, most) for row, total in zip(rows, totals, strict=True)]

    def _written(self, ids: Sequence[int], log_probability: float, max_new_tokens: int) -> Written:
        closed = bool(ids) and ids[-1] in self._ends
        # An end that was forced because the length was used up is no end of the model's own.
        forced = len(ids) == max_new_tokens and self._model.generation_config.forced_eos_token_id is not None
        text_ids = tuple(ids[:-1] if closed else ids)
        return Written(text_ids, len(ids), log_probability, closed and not forced)

    def _generate(
        self,
        inputs: Mapping[str, Any],
        max_new_tokens: int,
        num_beams: int,
        criterion: StoppingCriteria,
        **more: Any,
    ) -> Tensor:
        kwargs = dict(inputs)
        if "encoder_outputs" in kwargs:
            # `generate` repeats the tensors for its beams inside the object it is given.
            kwargs["encoder_outputs"] = copy.copy(kwargs["encoder_outputs"])
        found: Tensor = self._model.generate(
            **kwargs,
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            pad_token_id=self._pad,
            stopping_criteria=StoppingCriteriaList([criterion]),
            **more,
        )
        return found

    def _log_probabilities(
        self, inputs: Mapping[str, Any], found: Tensor, lengths: Sequence[int]
    ) -> list[float]:
        """Log-probability of the first ``lengths`` new tokens of each row, teacher-forced."""
        new = found.shape[1] - _prompt(inputs).shape[1]
        step = max(1, _MOST_LOGITS // (new * self._model.config.get_text_config().vocab_size))
        totals: list[float] = []
        for begin in range(0, len(found), step):
            rows = slice(begin, begin + step)
            logits = self._logits(_rows(inputs, rows), found[rows], new)
            tokens = found[rows, -new:]
            chosen = logits.gather(-1, tokens[..., None])[..., 0] - logits.logsumexp(-1)
            ends = torch.tensor(lengths[rows], device=found.device)[:, None]
            written = torch.arange(new, device=found.device) < ends
            totals += chosen.masked_fill(~written, 0.0).double().sum(1).tolist()
        return totals

    def _logits(self, inputs: dict[str, Any], found: Tensor, new: int) -> Tensor:
        """The model's scores [B, new, V] of the ``new`` last tokens of ``found``, in one pass."""
        if "decoder_input_ids" in inputs:
            inputs["decoder_input_ids"] = found[:, :-1]
        else:
            mask = torch.cat([inputs["attention_mask"], torch.ones_like(found[:, -new:-1])], 1)
            inputs |= {"input_ids": found[:, :-1], "attention_mask": mask}
            if "position_ids" in self._accepted:
                inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = new
        logits: Tensor = self._model(**inputs).logits[:, -new:].float()
        return logits


def _rows(inputs: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    """The inputs of some rows."""
    return {
        name: type(value)(**{part: tensor[rows] for part, tensor in value.items()})
        if isinstance(value, ModelOutput)
        else value[rows]
        for name, value in inputs.items()
    }


def _prompt(inputs: Mapping[str, Any]) -> Tensor:
    """What new tokens are written behind [B, T]."""
    prompt: Tensor = inputs["decoder_input_ids"] if "decoder_input_ids" in inputs else inputs["input_ids"]
    return prompt
