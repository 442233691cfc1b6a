import math

import numpy as np
import pytest

from evenmesh_core.ensemble import search_weights, vote
from evenmesh_core.errors import InvalidInput


@pytest.fixture(scope="module")
def training():
    """60 questions, 2 metrics, 4 retrievers: the third is right most often, and similarities tell nothing."""
    rng = np.random.default_rng(11)
    similarity = rng.random((60, 2, 4, 4))
    correct = (rng.random((60, 4)) < [0.2, 0.3, 0.8, 0.25]).astype(float)
    return similarity, correct


def mean_correctness(training, found, **options):
    similarity, correct = training
    winners = [vote(s, found.metric_weights, found.retriever_weights, **options).winner for s in similarity]
    return np.mean([row[winner] for row, winner in zip(correct, winners, strict=True)])


@pytest.mark.parametrize("options", [{}, {"pooling": "max"}, {"drop_filtered": True}])
def test_the_weights_found_reach_the_correctness_reported(training, options):
    found = search_weights(*training, **options)
    assert mean_correctness(training, found, **options) == pytest.approx(found.correctness)


def test_search_beats_equal_weights_and_favours_the_reliable(training):
    similarity, correct = training
    found = search_weights(similarity, correct)
    equal = [vote(s, [1, 1], [1, 1, 1, 1]).winner for s in similarity]
    assert found.correctness > np.mean(correct[np.arange(60), equal])
    assert found.correctness >= correct.mean(axis=0).max() - 0.05
    assert np.argmax(found.retriever_weights) == 2


def test_weights_stay_in_their_box_and_the_trace_never_falls(training):
    found = search_weights(*training, max_weight=0.4)
    for weights in (found.metric_weights, found.retriever_weights):
        assert weights.min() >= 0.0
        assert weights.max() <= 0.4
    assert (np.diff(found.trace) >= 0).all()
    assert found.trace[-1] == found.correctness


def test_the_search_is_deterministic(training):
    first, second = search_weights(*training), search_weights(*training)
    np.testing.assert_array_equal(first.retriever_weights, second.retriever_weights)
    np.testing.assert_array_equal(first.trace, second.trace)


@pytest.mark.parametrize("budget", [8, 9, 11, 12, 14, 15, 17, 20, 40])
def test_the_best_weights_seen_are_returned_wherever_the_search_was_cut(training, budget):
    found = search_weights(*training, max_evaluations=budget)
    assert mean_correctness(training, found) == pytest.approx(found.correctness)


@pytest.mark.parametrize("seed", range(6))
def test_a_weight_at_the_filter_is_removed_in_the_search_as_in_the_vote(seed):
    """With a filter of 0 the search meets it exactly, at the edge of its box."""
    rng = np.random.default_rng(seed)
    training = rng.random((12, 1, 3, 3)), (rng.random((12, 3)) < 0.4).astype(float)
    options = {"drop_filtered": True, "retriever_filter": 0.0}
    found = search_weights(*training, max_evaluations=60, **options)
    assert mean_correctness(training, found, **options) == pytest.approx(found.correctness)


def test_the_budget_is_kept(training):
    assert len(search_weights(*training, max_evaluations=25).trace) <= 25


def test_one_evaluation_gives_equal_weights(training):
    found = search_weights(*training, max_evaluations=1)
    assert found.retriever_weights.tolist() == [0.6 / 2] * 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"similarity": np.zeros((2, 1, 3, 2))}, r"similarity.shape is \(2, 1, 3, 2\)"),
        (
            {"similarity": np.zeros((1, 3, 3))},
            r"similarity.shape is \(1, 3, 3\); allowed: an array of 4 dimensions",
        ),
        ({"similarity": np.full((2, 1, 3, 3), math.inf)}, r"similarity\[0, 0, 0, 0\] is inf"),
        ({"correct": np.zeros((2, 2))}, r"correct.shape is \(2, 2\); allowed: \(2, 3\)"),
        ({"correct": np.full((2, 3), 1.5)}, r"correct\[0, 0\] is 1.5"),
        ({"pooling": "sum"}, "pooling is 'sum'"),
        ({"max_weight": 0}, "max_weight is 0"),
        ({"retriever_filter": 0.3}, "retriever_filter is 0.3; allowed: numbers below 0.3"),
        ({"max_evaluations": 0}, "max_evaluations is 0"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {"similarity": np.zeros((2, 1, 3, 3)), "correct": np.zeros((2, 3))}
    with pytest.raises(InvalidInput, match=complaint):
        search_weights(**(good | arguments))
