"""Exposure of one ask, measured on what the generator was given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from orchestrator.domain import Answered, Contexts, Exposure, Labels, Pool, ProviderShare, UtilityMetric
from ragcore import text_metrics
from ragcore.arrays import FloatArray
from ragcore.exposure import exposure_metrics, target_exposure, top_k
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
        return Exposure(pool.scores[:0], 0.0, None, 0.0, None, utility, ())
    metrics = exposure_metrics(contexts.rows, usefulness(pool, labels), k=k)
    return Exposure(
        per_passage=metrics.exposure[:n],
        ee_d=metrics.ee_d,
        ee_r=_defined(metrics.ee_r),
        ee_d_norm=metrics.ee_d_norm,
        ee_r_norm=_defined(metrics.ee_r_norm),
        expected_utility=utility,
        providers=_providers(pool, metrics.exposure, metrics.target if labels.useful is not None else None),
    )


def measure_shown(
    pool: Pool, shown: Sequence[Sequence[int]], answers: Sequence[Answered], labels: Labels
) -> Exposure:
    """Measures contexts of several lengths, one for each member of an ensemble, as :func:`measure` does.

    Args:
        pool: what the members found together.
        shown: indices into it, what each member was given; k is the longest.
        answers: theirs.
        labels: what is known to be right.
    """
    by_member = [replace(one, samples=(0,)) for one in answers]
    value = _expected_utility(by_member, labels)
    n, k = len(pool.passages), max(map(len, shown), default=0)
    if not n or not k:
        return Exposure(pool.scores[:0], 0.0, None, 0.0, None, value, ())
    useful = usefulness(pool, labels)
    exposure = np.zeros(len(useful))
    for places in shown:
        exposure[list(places)] += 1 / len(shown)
    target = target_exposure(useful, top_k(k))
    ee_d, bound = float(exposure @ exposure), float(min(k, len(useful)))
    ee_r = float(exposure @ target) if any(useful) else None
    return Exposure(
        per_passage=exposure[:n],
        ee_d=ee_d,
        ee_r=ee_r,
        ee_d_norm=ee_d / bound,
        ee_r_norm=None if ee_r is None else ee_r / float(target @ target),
        expected_utility=value,
        providers=_providers(pool, exposure, target if labels.useful is not None else None),
    )


def measure_exactly(pool: Pool, inclusion: FloatArray, k: int, labels: Labels) -> tuple[float, float | None]:
    """EE-D and EE-R, each over its bound, of a policy whose inclusion probabilities [n] are known."""
    useful = usefulness(pool, labels)
    exposure = np.concatenate([inclusion, np.zeros(len(useful) - len(inclusion))])
    metrics = exposure_metrics(None, useful, k=k, exposure=exposure)
    return metrics.ee_d_norm, _defined(metrics.ee_r_norm)


def usefulness(pool: Pool, labels: Labels) -> list[bool]:
    """Whether each passage of the pool is useful; then True for each useful one that the retriever missed."""
    useful = labels.useful or frozenset()
    mask = [passage.id in useful for passage in pool.passages]
    return mask + [True] * (len(useful) - sum(mask))


def utility(text: str, labels: Labels) -> float:
    """How good an answer is against the references, of which there must be some; [0, 1]."""
    return float(_SCORES[labels.metric](text, labels.references))


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _expected_utility(answers: Sequence[Answered], labels: Labels) -> float | None:
    if not labels.references or not answers:
        return None
    scores = {text: utility(text, labels) for text in {answered.answer.text for answered in answers}}
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
