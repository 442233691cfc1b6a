"""What one observation measures: exposure of what was shown, utility of what was said."""

from __future__ import annotations

import math

import numpy as np

from ragcore.exposure import ExposureMetrics, exposure_metrics
from services.evaluator import utility
from services.evaluator.domain import Measurement, Observation, ProviderExposure


def measure(observation: Observation) -> Measurement:
    """Measures one observation.

    Exposure is that of the contexts the generator was given: k is their length, and the items are the
    candidates and, with exposure 0, useful passages that were not even candidates. So a retriever that misses
    what is useful pays for it in EE-R instead of being left out of the mean. Expected utility is the mean
    over the samples that have an answer. Without candidates or context exposure is undefined, without useful
    passages EE-R is, and without references or answers expected utility is.

    Source: Kim and Diaz, "Towards Fair RAG", equations 3 to 6, appendix C.
    """
    exposure = _exposure(observation)
    answered = sum(len(answer.samples) for answer in observation.answers)
    return Measurement(
        quantities={
            "ee_d": None if exposure is None else _defined(exposure.ee_d),
            "ee_d_norm": None if exposure is None else _defined(exposure.ee_d_norm),
            "ee_r": None if exposure is None else _defined(exposure.ee_r),
            "ee_r_norm": None if exposure is None else _defined(exposure.ee_r_norm),
            "expected_utility": _expected_utility(observation),
        },
        num_rankings=len(observation.shown),
        num_unanswered=len(observation.shown) - answered,
        providers={} if exposure is None else _providers(observation, exposure),
    )


def _exposure(observation: Observation) -> ExposureMetrics | None:
    n, k = len(observation.passage_ids), observation.shown.shape[1]
    if not n or not k:
        return None
    useful = observation.labels.useful or frozenset()
    mask = [passage_id in useful for passage_id in observation.passage_ids]
    missed = len(useful) - sum(mask)
    return exposure_metrics(observation.shown, mask + [True] * missed, k=k)


def _expected_utility(observation: Observation) -> float | None:
    references = observation.labels.references
    if not references or not observation.answers:
        return None
    weights = [len(answer.samples) for answer in observation.answers]
    utilities = utility.of_answers(
        [answer.text for answer in observation.answers], references, observation.labels.metric
    )
    return float(np.average(utilities, weights=weights))


def _providers(observation: Observation, exposure: ExposureMetrics) -> dict[str, ProviderExposure]:
    achieved: dict[str, float] = dict.fromkeys(observation.providers, 0.0)
    deserved = achieved.copy()
    # Beyond the candidates are useful passages that were missed: their providers are not known.
    n = len(observation.providers)
    pairs = zip(exposure.exposure[:n].tolist(), exposure.target[:n].tolist(), strict=True)
    for provider, (shown, due) in zip(observation.providers, pairs, strict=True):
        achieved[provider] += shown
        deserved[provider] += due
    labelled = observation.labels.useful is not None
    return {
        provider: ProviderExposure(value, deserved[provider] if labelled else None)
        for provider, value in achieved.items()
    }


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
