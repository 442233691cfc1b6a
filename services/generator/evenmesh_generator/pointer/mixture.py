"""The distribution of the next token: the vocabulary mixed with the tokens of the source.

Pointer-generator mixture after See, Liu, Manning (ACL 2017), equation 9, with ``g = 1 - p_gen``.
Shapes: S source tokens, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_TINY = torch.finfo(torch.float32).tiny
"""Smallest normal float32: the floor under a probability before its logarithm."""


@dataclass
class Mixture:
    """The parts of the output distribution, all in float32.

    ``vocab_logits`` [..., V] unnormalised; ``copy_probs`` [..., S] sum to 1; ``gate_logit`` [...],
    sigmoid of it is g, the weight of copying.
    """

    vocab_logits: Tensor
    copy_probs: Tensor
    gate_logit: Tensor

    def log_probs(self, source_ids: Tensor) -> Tensor:
        """Return log((1 - g)·softmax(vocab) + g·copy), [..., V]; ``source_ids`` broadcasts to [..., S]."""
        copied = torch.zeros_like(self.vocab_logits).scatter_add(
            -1, source_ids.expand_as(self.copy_probs), self.copy_probs
        )
        return self._mix(self.vocab_logits.log_softmax(-1), copied, self.gate_logit.unsqueeze(-1))

    def target_log_probs(self, source_ids: Tensor, targets: Tensor) -> Tensor:
        """Return the entries of :meth:`log_probs` at ``targets`` [...], without building the other V - 1."""
        chosen = self.vocab_logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        log_vocab = chosen - self.vocab_logits.logsumexp(-1)
        copied = (self.copy_probs * (source_ids == targets.unsqueeze(-1))).sum(-1)
        return self._mix(log_vocab, copied, self.gate_logit)

    @staticmethod
    def _mix(log_vocab: Tensor, copied: Tensor, gate_logit: Tensor) -> Tensor:
        log_copied = copied.clamp_min(_TINY).log()
        return torch.logaddexp(
            functional.logsigmoid(-gate_logit) + log_vocab, functional.logsigmoid(gate_logit) + log_copied
        )


def apply_abstention_bias(
    log_probs: Tensor, token_ids: Tensor, *, bias: float, start: int, abstention: int
) -> Tensor:
    """Return ``log_probs`` [..., V] with an abstention bias, normalised again.

    Args:
        token_ids: tokens before [...]; where they are not ``start``, no answer begins, and nothing changes.
        bias: added to the log-probability of ``abstention``. Nats.
        start: token that answers begin after.
        abstention: first token of the abstention.
    """
    if not bias:
        return log_probs
    begins = token_ids == start
    abstains = log_probs[..., abstention]
    # p + (1 - p) was 1; with p·exp(bias) in p's place it is 1 + p·(exp(bias) - 1)
    total = torch.log1p(abstains.exp() * math.expm1(bias))
    leaning = log_probs - (begins * total).unsqueeze(-1)
    leaning[..., abstention] += begins * bias
    return leaning
