import math
from itertools import product

import numpy as np
import pytest

from evenmesh_core.ensemble import search_weights, vote
from evenmesh_core.ensemble.votes import POOLINGS
from evenmesh_core.ensemble.weight_lines import Line, best_weights
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
    assert found.correctness >= correct.mean(axis=0).max()
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


def test_two_evaluations_are_equal_weights_and_the_best_single_retriever(training):
    """Similarities tell nothing here, so the third retriever alone is better than a vote of all."""
    found = search_weights(*training, max_evaluations=2)
    assert found.retriever_weights.tolist() == [0, 0, 0.6, 0]
    equal = [vote(s, [1, 1], [1, 1, 1, 1]).winner for s in training[0]]
    right = training[1]
    assert found.trace.tolist() == [right[np.arange(60), equal].mean(), right[:, 2].mean()]


def random_problem(seed):
    """3 to 39 questions, 1 to 3 metrics, 2 to 6 retrievers; odd seeds have similarities with many ties."""
    rng = np.random.default_rng(seed)
    questions, metrics, retrievers = rng.integers(3, 40), rng.integers(1, 4), rng.integers(2, 7)
    shape = (questions, metrics, retrievers, retrievers)
    similarity = rng.integers(0, 3, shape) / 2 if seed % 2 else rng.random(shape)
    return similarity, (rng.random((questions, retrievers)) < rng.random(retrievers)).astype(float)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_vote_is_below_the_best_single_retriever_on_the_training_questions(pooling):
    """Two hundred random problems; the published search was below it in 23 of 32."""
    for seed in range(200):
        similarity, correct = random_problem(seed)
        options = {"pooling": pooling, "drop_filtered": seed % 4 > 1}
        found = search_weights(similarity, correct, max_evaluations=2 + seed % 40, **options)
        assert found.correctness >= correct.mean(axis=0).max() - 1e-12, seed
        assert mean_correctness((similarity, correct), found, **options) == pytest.approx(found.correctness)


def test_one_survivor_is_found_where_agreement_misleads():
    """By hand: retrievers 0 and 1 agree and are wrong; 2 stands alone and is right, so only 2 alone wins.

    Its pooled similarity is 0, so with any other survivor its score is not above theirs.
    """
    alike = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=float)
    found = search_weights(np.stack([[alike]] * 4), [[0, 0, 1]] * 4)
    assert found.retriever_weights.tolist() == [0, 0, 0.6]
    assert found.correctness == 1
    assert found.exact


def test_two_retrievers_share_the_questions_at_the_only_ratio_that_divides_them():
    """By hand: answers of 0 score 0.9 w0 and 0.5 w0, those of 1 score 0.6 w1 and 0.6 w1.

    Question 1 needs 0 to win, w1 / w0 < 1.5; question 2 needs 1, w1 / w0 > 5/6. With equal weights both hold.
    Question 3, with 0.7 w0 against 0.6 w1, needs 1 as well: w1 / w0 > 7/6, where equal weights fail.
    """
    similarity = np.zeros((3, 1, 2, 2))
    for question, (first, second) in enumerate([(0.9, 0.6), (0.5, 0.6), (0.7, 0.6)]):
        similarity[question, 0] = [[0, first], [second, 0]]
    found = search_weights(similarity, [[1, 0], [0, 1], [0, 1]])
    assert found.correctness == 1
    assert found.exact
    assert 7 / 6 < found.retriever_weights[1] / found.retriever_weights[0] < 3 / 2


@pytest.mark.parametrize("seed", range(12))
def test_an_exact_search_of_three_retrievers_is_not_beaten_by_a_grid(seed):
    """Ratios of a grid are votes too, ties among them; no vote on it is better than the optimum."""
    rng = np.random.default_rng(seed)
    shape = (6, 1, 3, 3)
    similarity = rng.random(shape) - 0.2 if seed % 2 else rng.integers(0, 4, shape) / 3
    correct = rng.integers(0, 2, (6, 3)).astype(float)
    found = search_weights(similarity, correct)
    assert found.exact
    best = 0.0
    for weights in product(np.linspace(0, 0.6, 10), repeat=3):
        if max(weights) > 0.1:
            winners = [vote(s, [1], weights).winner for s in similarity]
            best = max(best, correct[np.arange(6), winners].mean())
    assert found.correctness >= best - 1e-12


def test_a_line_changes_where_scores_meet():
    """By hand, for a mover right on the first and last question, the others on the second alone.

    Scores meet at 0.3 / 0.6 = 0.5, 0.2 / 0.5 = 0.4 and 0.05 / 0.5 = 0.1. Above 0.5 the mover wins all: 2/3;
    from 0.1 to 0.4 the last alone, and the others keep the second: 2/3; between 0.4 and 0.5: 1/3. At 0.5 the
    mover does not win the tie. The gap (0.1, 0.4) is wider than (0.5, 0.6).
    """
    line = Line(
        np.array([0.6, 0.5, 0.5]),
        np.array([1.0, 0, 1]),
        np.array([0.3, 0.2, 0.05]),
        np.array([0.0, 1, 0]),
        np.array([False, False, False]),
    )
    gap, change = best_weights(line, 0.1, 0.6)
    assert gap.correctness == pytest.approx(2 / 3)
    assert gap.weight == pytest.approx(0.25)
    assert change is None


def test_a_weight_at_a_change_can_beat_every_gap():
    """By hand: both questions change at 0.4. The mover wins the first tie and should, loses the second and should.

    Below 0.4 the others win both, 1/2; above the mover wins both, 1/2; at 0.4 both are right.
    """
    line = Line(
        np.array([0.5, 0.5]),
        np.array([1.0, 0]),
        np.array([0.2, 0.2]),
        np.array([0.0, 1]),
        np.array([True, False]),
    )
    gap, change = best_weights(line, 0.1, 0.6)
    assert gap.correctness == 0.5
    assert change.correctness == 1
    assert change.weight == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(30))
def test_a_line_agrees_with_counting_at_every_weight(seed):
    """Similarities of any sign: a mover's answer may fall as its weight grows."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    pooled, rest = rng.integers(-3, 4, count) / 4, rng.integers(-3, 4, count) / 8
    correct, rest_correct = rng.random(count), rng.random(count)
    ties = rng.random(count) < 0.5
    gap, change = best_weights(Line(pooled, correct, rest, rest_correct, ties), 0.125, 0.625)

    def counted(weight):
        wins = (weight * pooled > rest) | ((weight * pooled == rest) & ties)
        return np.where(wins, correct, rest_correct).mean()

    changes = [r / p for r, p in zip(rest, pooled, strict=True) if p and 0.125 < r / p <= 0.625]
    tried = [counted(weight) for weight in [*np.linspace(0.1251, 0.625, 400), *changes]]
    assert counted(gap.weight) == pytest.approx(gap.correctness)
    best = gap if change is None else change
    assert best.correctness >= max(tried) - 1e-9


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
        ({"retriever_filter": 0.3}, "retriever_filter is 0.3; allowed: numbers from 0 and below 0.3"),
        ({"retriever_filter": -0.1}, "retriever_filter is -0.1; allowed: numbers from 0"),
        ({"max_evaluations": 1}, "max_evaluations is 1"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {"similarity": np.zeros((2, 1, 3, 3)), "correct": np.zeros((2, 3))}
    with pytest.raises(InvalidInput, match=complaint):
        search_weights(**(good | arguments))
