"""Exposure of one ask, measured on what the generator was given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from orchestrator.domain import Answered, Contexts, Exposure, Labels, Pool, ProviderShare, UtilityMetric
from ragcore import text_metrics
from ragcore.arrays import FloatArray
from ragcore.exposure import exposure_metrics
from ragcore.utility import expected_utility


class _Score(Protocol):
    def __call__(self, prediction: str, references: str | Sequence[str]) -> float: ...


_SCORES: Final[dict[UtilityMetric, _Score]] = {
    UtilityMetric.EXACT_MATCH: text_metrics.exact_match,
    UtilityMetric.TOKEN_F1: text_metrics.token_f1,
    UtilityMetric.ROUGE1: partial(text_metrics.rouge, variant="rouge1"),
    UtilityMetric.ROUGE2: partial(text_metrics.rouge, variant="rouge2"),
    UtilityMetric.ROUGE_L: partial(text_metrics.rouge, variant="rougeL"),
    UtilityMetric.ACCURACY: text_metrics.accuracy,
}


def measure(pool: Pool, contexts: Contexts, answers: Sequence[Answered], labels: Labels) -> Exposure:
    """Measures an ask as the evaluator measures its observation.

    The items are the pool and, with exposure 0, useful passages that the retriever missed; k is the length of
    the contexts. Without pool or context nothing was exposed: EE-D is 0. Expected utility is the mean over
    the samples that have an answer.

    Source: Kim and Diaz, "Towards Fair RAG", equations 3 to 7, appendix C.
    """
    utility = _expected_utility(answers, labels)
    n, k = len(pool.passages), contexts.rows.shape[1]
    if not n or not k:
        return Exposure(pool.scores[:0], 0.0, None, utility, ())
    useful = labels.useful or frozenset()
    mask = [passage.id in useful for passage in pool.passages]
    missed = len(useful) - sum(mask)
    metrics = exposure_metrics(contexts.rows, mask + [True] * missed, k=k)
    return Exposure(
        per_passage=metrics.exposure[:n],
        ee_d_norm=metrics.ee_d_norm,
        ee_r_norm=None if math.isnan(metrics.ee_r_norm) else metrics.ee_r_norm,
        expected_utility=utility,
        providers=_providers(pool, metrics.exposure, metrics.target if labels.useful is not None else None),
    )


def _expected_utility(answers: Sequence[Answered], labels: Labels) -> float | None:
    if not labels.references or not answers:
        return None
    score = _SCORES[labels.metric]
    scores = {text: score(text, labels.references) for text in {answered.answer.text for answered in answers}}
    utilities = [scores[answered.answer.text] for answered in answers for _ in answered.samples]
    return expected_utility(utilities)


def _providers(pool: Pool, exposure: FloatArray, target: FloatArray | None) -> list[ProviderShare]:
    """Shares of known providers in all exposure, most exposed first, then by name."""
    providers = [passage.attributes.get("provider", "") for passage in pool.passages]
    achieved: dict[str, float] = dict.fromkeys(providers, 0.0)
    deserved = achieved.copy()
    for provider, shown in zip(providers, exposure[: len(providers)].tolist(), strict=True):
        achieved[provider] += shown
    if target is not None:
        for provider, due in zip(providers, target[: len(providers)].tolist(), strict=True):
            deserved[provider] += due
    total = sum(achieved.values())
    return [
        ProviderShare(name, value, value / total, deserved[name] if target is not None else None)
        for name, value in sorted(achieved.items(), key=lambda item: (-item[1], item[0]))
        if name
    ]
