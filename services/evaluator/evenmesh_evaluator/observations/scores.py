"""Scores of one observation: exposure of its passages, utility of its answers, votes and errors."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from evenmesh.wire.errors import InvalidField
from evenmesh_core.arrays import FloatArray
from evenmesh_core.ensemble import agreement_of, error_indicators, normalized_containment
from evenmesh_core.exposure import ExposureMetrics, exposure_metrics
from evenmesh_core.text_metrics import normalize_answer
from evenmesh_evaluator.domain import CONVERSATION, Exposed, Measurement, Observation, Provided
from evenmesh_evaluator.measures.conversations import fairness
from evenmesh_evaluator.measures.utility import answer_utilities

_ERRORS: Final = ("retriever_error", "hallucination_error", "extraction_error", "lucky_guess")
_RIGHT: Final = 1.0
"""Utility of a right answer, the maximum of every metric."""


def measure(observation: Observation) -> Measurement:
    """Measure one observation.

    Exposure is that of the contexts that the generator was given: k is their length, and the items are the
    candidates and, with exposure 0, useful passages that were no candidates. A retriever that misses useful
    passages therefore gets a lower EE-R instead of an undefined one. The rankings of an ensemble's retrievers
    are measured like samples. Expected utility is the mean over the samples that have an answer; after a vote
    it is the utility of the winning answer, which the user was given. Exposure is undefined without
    candidates or context, EE-R without useful passages, and expected utility without references or answers.

    The agreement of a vote is the share of the other samples' answers that contain the winner's words or are
    contained in them; it is undefined without a winner or another answer. Errors are shares of the answered
    samples; their kind depends on whether the sample's context holds a right answer and the given answer. An
    answer is right where its utility is 1. Errors are undefined where expected utility is, without context,
    and where a shown passage has no text.

    Source: Kim & Diaz 2025 (arXiv:2409.11598), equations 3 to 7, appendix C; Li et al. 2024
    (arXiv:2405.20680), section 3.1, equation 4; Sakai 2023 (doi:10.20736/0002001350), equations 3 to 10.

    Raises:
        InvalidField: parts of a conversation do not fit each other.
    """
    exposure = _exposure(observation)
    utilities = _utilities(observation)
    weights = [len(answer.samples) for answer in observation.answers]
    return Measurement(
        quantities={
            **{
                name: None if exposure is None else _defined(getattr(exposure, name))
                for name in ("ee_d", "ee_d_norm", "ee_r", "ee_r_norm")
            },
            "expected_utility": _expected_utility(observation, utilities),
            "vote_agreement": _vote_agreement(observation),
            **_errors(observation, utilities),
            **_conversation(observation),
        },
        num_rankings=len(observation.shown),
        num_unanswered=len(observation.shown) - sum(weights),
        largest_utility=None if utilities is None else float(utilities.max()),
        providers=None if exposure is None else _providers(observation, exposure),
        passages=None if exposure is None else _passages(observation, exposure),
        provided=None if exposure is None else _provided(observation, exposure),
    )


def _exposure(observation: Observation) -> ExposureMetrics | None:
    n, k = len(observation.passage_ids), observation.shown.shape[1]
    if not n or not k:
        return None
    useful = observation.labels.useful or frozenset()
    mask = [passage_id in useful for passage_id in observation.passage_ids]
    missed = len(useful) - sum(mask)
    return exposure_metrics(observation.shown, mask + [True] * missed, k=k)


def _expected_utility(observation: Observation, utilities: FloatArray | None) -> float | None:
    if utilities is None:
        return None
    if observation.vote_winner is not None:
        return float(utilities[observation.vote_winner])
    return float(np.average(utilities, weights=[len(answer.samples) for answer in observation.answers]))


def _utilities(observation: Observation) -> FloatArray | None:
    references = observation.labels.references
    if not references or not observation.answers:
        return None
    answers = [answer.text for answer in observation.answers]
    return answer_utilities(answers, references, observation.labels.metric)


def _providers(observation: Observation, exposure: ExposureMetrics) -> Exposed:
    # Past the candidates come useful passages that were missed, whose providers are unknown.
    n = len(observation.providers)
    places: dict[str, int] = {}
    at = [places.setdefault(provider, len(places)) for provider in observation.providers]
    return Exposed(
        list(places),
        _summed(at, exposure.exposure[:n]),
        _summed(at, exposure.target[:n]) if observation.labels.useful is not None else None,
    )


def _provided(observation: Observation, exposure: ExposureMetrics) -> Provided:
    n, k = len(observation.providers), observation.shown.shape[1]
    places = {name: place for place, name in enumerate(dict.fromkeys(observation.providers))}
    at = [places[provider] for provider in observation.providers]
    cited = np.zeros(len(places), dtype=np.int64)
    for answer in observation.answers:
        for candidate in answer.cited:
            cited[at[candidate]] = 1
    exposed = _summed(at, exposure.exposure[:n]) / k
    merit = observation.merit_shares
    target = None if merit is None else _summed(at, merit)
    known = np.array([bool(name) for name in places])
    return Provided(
        names=[name for name in places if name],
        shown=(exposed > 0).astype(np.int64)[known],
        cited=cited[known],
        exposure=np.clip(exposed, 0.0, 1.0)[known],
        target=None if target is None else np.clip(target, 0.0, 1.0)[known],
    )


def _summed(at: list[int], values: FloatArray) -> FloatArray:
    sums: FloatArray = np.bincount(at, weights=values).astype(np.float64, copy=False)
    return sums


def _passages(observation: Observation, exposure: ExposureMetrics) -> Exposed:
    useful = observation.labels.useful
    names = [*observation.passage_ids, *sorted((useful or frozenset()).difference(observation.passage_ids))]
    target = np.zeros(len(names)) if useful is None else exposure.target
    # Most candidates are neither shown nor deserve it: they add nothing to any sum.
    counts = np.flatnonzero((exposure.exposure > 0) | (target > 0))
    return Exposed(
        [names[i] for i in counts.tolist()],
        exposure.exposure[counts],
        None if useful is None else target[counts],
    )


def _vote_agreement(observation: Observation) -> float | None:
    if observation.vote_winner is None:
        return None
    said = [normalize_answer(answer.text) for answer in observation.answers]
    winner = said[observation.vote_winner]
    alike = [normalized_containment(winner, one) for one in said]
    votes = [len(answer.samples) for answer in observation.answers]
    row = np.repeat(alike, votes)
    # Any sample of the winning answer is the winner; only its row of the similarities is read.
    first = sum(votes[: observation.vote_winner])
    return _defined(agreement_of(row, first))


def _errors(observation: Observation, utilities: FloatArray | None) -> dict[str, float | None]:
    undefined: dict[str, float | None] = dict.fromkeys(_ERRORS)
    if utilities is None or not observation.shown.shape[1] or not observation.texts:
        return undefined
    shown = np.unique(observation.shown).tolist()
    if not all(observation.texts[i] for i in shown):
        return undefined
    held = {i: f" {normalize_answer(observation.texts[i])} " for i in shown}
    right = [_wanted(reference) for reference in observation.labels.references]
    holds_right = {i: any(one is not None and one in text for one in right) for i, text in held.items()}
    correct, answer_held, response_held = [], [], []
    for answer, value in zip(observation.answers, utilities.tolist(), strict=True):
        wanted = _wanted(answer.text)
        said = {i for i, text in held.items() if wanted is not None and wanted in text}
        for sample in answer.samples:
            context = observation.shown[sample].tolist()
            correct.append(value >= _RIGHT)
            answer_held.append(any(holds_right[i] for i in context))
            response_held.append(not said.isdisjoint(context))
    errors = error_indicators([correct], [answer_held], [response_held])
    return {name: float(getattr(errors, name).mean()) for name in _ERRORS}


def _conversation(observation: Observation) -> dict[str, float | None]:
    if observation.conversation is None:
        return {}
    try:
        found = fairness(observation.conversation.judged)
    except InvalidField as error:
        raise InvalidField(f"conversation.judged.{error.field}", error.message) from error
    values = (found.relevance, found.group_fairness, found.combined)
    return {name: _defined(value) for name, value in zip(CONVERSATION, values, strict=True)}


def _wanted(text: str) -> str | None:
    """Return what a normalised passage contains if it holds ``text``; None for a text without words."""
    words = normalize_answer(text)
    return f" {words} " if words else None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
