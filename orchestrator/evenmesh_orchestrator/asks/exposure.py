"""Exposure and utility of one ask, measured on what the generator received."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_core.answer_scores import AnswerMetric, best_scores
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure import ExposureMetrics, exposure_metrics
from evenmesh_core.utility import expected_utility
from evenmesh_kit.compute import steps
from evenmesh_kit.compute.steps import Check, unchecked
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.domain import Answered, Contexts, Pool

T = TypeVar("T")

# Ranked places, passages or characters that are handled on the event loop: about half a millisecond of work.
_INLINE_PLACES: Final = 2_000
_INLINE_CHARACTERS: Final = 10_000


METRICS: Final[dict[int, AnswerMetric]] = {
    evaluator_pb.UTILITY_METRIC_EXACT_MATCH: "exact_match",
    evaluator_pb.UTILITY_METRIC_TOKEN_F1: "token_f1",
    evaluator_pb.UTILITY_METRIC_ROUGE1: "rouge1",
    evaluator_pb.UTILITY_METRIC_ROUGE2: "rouge2",
    evaluator_pb.UTILITY_METRIC_ROUGE_L: "rougeL",
    evaluator_pb.UTILITY_METRIC_ACCURACY: "accuracy",
    evaluator_pb.UTILITY_METRIC_RATING: "rating",
}
"""Names of the metrics in ``evenmesh_core.answer_scores``."""
_SLOW_METRICS: Final = frozenset(
    {
        evaluator_pb.UTILITY_METRIC_ROUGE1,
        evaluator_pb.UTILITY_METRIC_ROUGE2,
        evaluator_pb.UTILITY_METRIC_ROUGE_L,
    }
)


async def offload(pool: TenantPool, size: float, compute: Callable[[Check], T]) -> T:
    """Compute on the event loop if it is quick, in a thread if it could block the loop.

    Args:
        pool: the threads.
        size: places, passages, or the result of :func:`scoring_size`.
        compute: the work; what it calls between two steps ends it when its caller is gone.
    """
    return compute(unchecked) if size <= _INLINE_PLACES else await steps.run(pool, compute)


def scoring_size(texts: Iterable[str], labels: evaluator_pb.Labels) -> float:
    """Return the size of scoring answers against the references, in the unit of :func:`offload`."""
    lengths = list(map(len, texts))
    if not labels.references or not lengths:
        return 0
    if labels.metric in _SLOW_METRICS:
        return math.inf
    known = sum(map(len, labels.references))
    characters = sum(lengths) * len(labels.references) + known * len(lengths)
    return characters * _INLINE_PLACES // _INLINE_CHARACTERS


def measure(
    pool: Pool,
    contexts: Contexts,
    answers: Sequence[Answered],
    labels: evaluator_pb.Labels,
    check: Check = unchecked,
) -> pb.ExposureReport:
    """Return the exposure and utility of an ask, as the evaluator measures its observation.

    The items are the pool and, with exposure 0, useful passages that the retriever missed; k is the length of
    the contexts. Without pool or context nothing was exposed: EE-D is 0. Expected utility is the mean over
    the samples that have an answer.

    Source: Kim and Diaz (2025), "Towards Fair RAG", equations 3 to 7, appendix C.
    """
    k = contexts.rows.shape[1]
    if not pool.passages or not k:
        return pb.ExposureReport(expected_utility=_expected_utility(answers, labels, check))
    metrics = exposure_metrics(contexts.rows, usefulness(pool, labels), k=k)
    return _report(pool, metrics, answers, labels, check)


def measure_shown(
    pool: Pool,
    shown: Sequence[Sequence[int]],
    answers: Sequence[Answered],
    labels: evaluator_pb.Labels,
    check: Check = unchecked,
) -> pb.ExposureReport:
    """Return what :func:`measure` returns, for contexts of several lengths: one per member of an ensemble.

    Args:
        pool: everything that the members found.
        shown: indices into it, the context of each member; k is the longest.
        answers: of the members.
        labels: of the ask.
    """
    answers = [replace(one, samples=(0,)) for one in answers]
    k = max(map(len, shown), default=0)
    if not pool.passages or not k:
        return pb.ExposureReport(expected_utility=_expected_utility(answers, labels, check))
    useful = usefulness(pool, labels)
    exposure = np.zeros(len(useful))
    for places in shown:
        exposure[list(places)] += 1 / len(shown)
    return _report(pool, exposure_metrics(None, useful, k=k, exposure=exposure), answers, labels, check)


def measure_exactly(
    pool: Pool, inclusion: FloatArray, k: int, labels: evaluator_pb.Labels
) -> tuple[float, float | None]:
    """Return EE-D and EE-R, each over its bound, of a policy with known inclusion probabilities [n]."""
    useful = usefulness(pool, labels)
    exposure = np.concatenate([inclusion, np.zeros(len(useful) - len(inclusion))])
    metrics = exposure_metrics(None, useful, k=k, exposure=exposure)
    return metrics.ee_d_norm, _defined(metrics.ee_r_norm)


def usefulness(pool: Pool, labels: evaluator_pb.Labels) -> list[bool]:
    """Return whether each passage of the pool is useful, then True for each useful one that it lacks."""
    useful = frozenset(labels.useful_passage_ids)
    mask = [passage.id in useful for passage in pool.passages]
    return mask + [True] * (len(useful) - sum(mask))


def utility(text: str, labels: evaluator_pb.Labels, check: Check = unchecked) -> float:
    """Return the score of an answer against the references, of which there must be some; [0, 1]."""
    return float(best_scores([text], labels.references, METRICS[labels.metric], check=check)[0])


def _report(
    pool: Pool,
    metrics: ExposureMetrics,
    answers: Sequence[Answered],
    labels: evaluator_pb.Labels,
    check: Check,
) -> pb.ExposureReport:
    return pb.ExposureReport(
        exposure=metrics.exposure[: len(pool.passages)].tolist(),
        ee_d=metrics.ee_d,
        ee_r=_defined(metrics.ee_r),
        ee_d_norm=metrics.ee_d_norm,
        ee_r_norm=_defined(metrics.ee_r_norm),
        expected_utility=_expected_utility(answers, labels, check),
        providers=_providers(pool, metrics.exposure, metrics.target if labels.has_useful else None),
    )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _expected_utility(answers: Sequence[Answered], labels: evaluator_pb.Labels, check: Check) -> float | None:
    if not labels.references or not answers:
        return None
    texts = [answered.answer.text for answered in answers]
    scores = best_scores(texts, labels.references, METRICS[labels.metric], check=check)
    return expected_utility(np.repeat(scores, [len(answered.samples) for answered in answers]))


def _providers(
    pool: Pool, exposure: FloatArray, target: FloatArray | None
) -> list[evaluator_pb.ExposureShare]:
    """Return the shares of known providers in all exposure, most exposed first, then by name."""
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
        evaluator_pb.ExposureShare(
            name=name,
            exposure=value,
            share=value / total,
            target=None if target is None else deserved[name],
        )
        for name, value in sorted(achieved.items(), key=lambda item: (-item[1], item[0]))
        if name
    ]
