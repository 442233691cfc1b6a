"""The training objective: answers and verdicts of one batch from one encoding of its pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.generator.pointer.examples import Batch
from services.generator.pointer.modeling import PointerForConditionalGeneration

RELEVANCE_WEIGHT = 0.5
"""Weight of the relevance loss beside the answer loss."""


@dataclass(frozen=True)
class Losses:
    """Mean negative log-likelihoods, nats: of an answer token; of a verdict, both classes alike."""

    answer: Tensor
    relevance: Tensor

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return self.answer + RELEVANCE_WEIGHT * self.relevance


def losses(model: PointerForConditionalGeneration, batch: Batch) -> Losses:
    """Both losses of ``batch``; every pair is encoded once and its cross-attention projected once."""
    config = model.config
    source = model.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    cross = model.decoder.project(source.last_hidden_state)
    alone = len(batch.single)
    parts = []
    for rows, begin, end in ((batch.single, 0, alone), (batch.fused, alone, batch.questions)):
        if len(rows) == 0:
            continue
        targets = batch.targets[begin:end]
        steps = int((targets >= 0).any(0).sum())
        picked, cache = model.select(source, cross, rows)
        parts.append(
            model.sequence_log_probs(batch.decoder_ids[begin:end, :steps], targets[:, :steps], picked, cache)
        )
    pairs = len(batch.input_ids)
    picked, cache = model.select(source, cross, None)
    gold = torch.arange(pairs) < batch.questions
    verdicts = torch.where(gold, config.true_token_id, config.false_token_id).unsqueeze(1)
    starts = torch.full_like(verdicts, config.relevance_token_id)
    log_probs = model.sequence_log_probs(starts, verdicts, picked, cache)
    balanced = [-log_probs[side].mean() for side in (gold, ~gold) if bool(side.any())]
    return Losses(-torch.cat(parts).mean(), torch.stack(balanced).mean())
