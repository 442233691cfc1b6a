"""What one observation measures, with every value derived by hand."""

from __future__ import annotations

import numpy as np
import pytest

from services.evaluator.domain import Labels, Observation, ProviderExposure, SampledAnswer, UtilityMetric
from services.evaluator.measurement import measure


def _observation(
    shown: list[list[int]],
    *,
    providers: str = "PQQR",
    labels: Labels | None = None,
    answers: tuple[SampledAnswer, ...] = (),
) -> Observation:
    return Observation(
        id="o",
        run_id="run",
        query_id="q",
        observed_at_us=0,
        passage_ids=["a", "b", "c", "d"][: len(providers)],
        providers=list(providers),
        shown=np.array(shown, dtype=np.int64).reshape(len(shown), -1),
        answers=answers,
        labels=labels or Labels(),
    )


def test_exposure_of_two_samples() -> None:
    # Contexts {a, b} and {a, c}: ε = (1, 1/2, 1/2, 0). EE-D = 1 + 1/4 + 1/4, its bound k = 2.
    # a and d are useful, m = k = 2: ε* = (1, 0, 0, 1), so EE-R = 1·1 = 1 and its bound is 1 + 1.
    measured = measure(_observation([[0, 1], [0, 2]], labels=Labels(useful=frozenset("ad"))))
    assert measured.quantities == pytest.approx(
        {"ee_d": 3 / 2, "ee_d_norm": 3 / 4, "ee_r": 1.0, "ee_r_norm": 1 / 2, "expected_utility": None}
    )
    assert measured.num_rankings == 2
    # P provides a, Q b and c, R d.
    assert measured.providers == {
        "P": ProviderExposure(1.0, 1.0),
        "Q": ProviderExposure(1.0, 0.0),
        "R": ProviderExposure(0.0, 1.0),
    }


def test_without_labels_only_disparity_is_defined() -> None:
    measured = measure(_observation([[0, 1]]))
    assert measured.quantities["ee_d_norm"] == 1.0
    assert measured.quantities["ee_r"] is None
    assert measured.quantities["ee_r_norm"] is None
    assert measured.providers["P"].target is None


def test_nothing_useful_is_known_and_leaves_relevance_undefined() -> None:
    # m = 0, but known: the target is uniform, min(k, n) / n = 2/4 each.
    measured = measure(_observation([[0, 1]], labels=Labels(useful=frozenset())))
    assert measured.quantities["ee_r"] is None
    assert measured.providers["Q"].target == 1.0


def test_a_useful_passage_that_was_no_candidate_counts_as_not_shown() -> None:
    # Useful are a and z, z was never retrieved: items (a, b, c, d, z), ε = (1, 1, 0, 0, 0), ε* = (1, 0, 0, 0,
    # 1). EE-R = 1 of 2; had z been ignored, ε* = (1, 1/3, 1/3, 1/3) and EE-R would be 4/3.
    measured = measure(_observation([[0, 1]], labels=Labels(useful=frozenset("az"))))
    assert measured.quantities["ee_r"] == 1.0
    assert measured.quantities["ee_r_norm"] == 0.5
    assert measured.quantities["ee_d_norm"] == 1.0


def test_expected_utility_is_the_mean_over_answered_samples() -> None:
    # Exact match: samples 0 and 2 are right, sample 1 is wrong, sample 3 has no answer: (1 + 0 + 1) / 3.
    labels = Labels(references=("the Rhine",), metric=UtilityMetric.EXACT_MATCH)
    answers = (SampledAnswer("Rhine", (0, 2)), SampledAnswer("Elbe", (1,)))
    measured = measure(_observation([[0], [1], [0], [2]], labels=labels, answers=answers))
    assert measured.quantities["expected_utility"] == pytest.approx(2 / 3)
    assert measured.num_unanswered == 1


def test_token_f1_takes_the_best_reference() -> None:
    # "river rhine" against "rhine": precision 1/2, recall 1, F1 = 2/3; against "elbe river valley": 2/5.
    labels = Labels(references=("elbe river valley", "rhine"))
    answers = (SampledAnswer("river Rhine", (0,)),)
    measured = measure(_observation([[0]], labels=labels, answers=answers))
    assert measured.quantities["expected_utility"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("answers", [(), (SampledAnswer("anything", (0,)),)])
def test_without_references_utility_is_undefined(answers: tuple[SampledAnswer, ...]) -> None:
    assert measure(_observation([[0]], answers=answers)).quantities["expected_utility"] is None


def test_nothing_shown_leaves_exposure_undefined() -> None:
    measured = measure(_observation([[]], answers=(SampledAnswer("from memory", (0,)),)))
    assert set(measured.quantities.values()) == {None}
    assert measured.providers == {}
    assert (measured.num_rankings, measured.num_unanswered) == (1, 0)
