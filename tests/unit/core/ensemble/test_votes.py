import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenmesh_core.ensemble import agreement, vote
from evenmesh_core.errors import InvalidInput

property_test = settings(derandomize=True, deadline=None, max_examples=50)
poolings = st.sampled_from(["mean", "max", "majority", "plurality"])

# Answers 0 and 1 agree, 2 is apart; the second metric sees 1 and 2 alike.
FIRST = [[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]]
SECOND = [[1, 0.5, 0.0], [0.5, 1, 1.0], [0.0, 1.0, 1]]


def test_mean_pooling_by_hand():
    outcome = vote([FIRST, SECOND], [3, 1], [0.2, 0.3, 0.6])
    s01, s02, s12 = 0.75 * 0.9 + 0.25 * 0.5, 0.75 * 0.1 + 0.25 * 0, 0.75 * 0.2 + 0.25 * 1
    pooled = [(s01 + s02) / 2, (s01 + s12) / 2, (s02 + s12) / 2]
    np.testing.assert_allclose(outcome.pooled, pooled)
    np.testing.assert_allclose(outcome.scores, [0.2 * pooled[0], 0.3 * pooled[1], 0.6 * pooled[2]])
    assert outcome.winner == 1


def test_max_pooling_by_hand():
    assert vote([FIRST], [1], [1, 1, 1], pooling="max").pooled.tolist() == [0.9, 0.9, 0.2]


def test_majority_needs_half_of_the_others_strictly_above_the_threshold():
    assert vote([FIRST], [1], [1, 1, 1], pooling="majority", threshold=0.8).pooled.tolist() == [1, 1, 0]
    assert vote([FIRST], [1], [1, 1, 1], pooling="majority", threshold=0.9).pooled.tolist() == [0, 0, 0]
    # of three others, one alike is less than half and two are more
    similarity = [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]]
    assert vote(similarity, [1], [1] * 4, pooling="majority").pooled.tolist() == [0, 1, 0, 0]


def test_plurality_marks_the_answers_with_the_most_equivalents():
    similarity = [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]]
    assert vote(similarity, [1], [1] * 4, pooling="plurality").pooled.tolist() == [0, 1, 0, 0]
    assert vote([np.eye(3)], [1], [1] * 3, pooling="plurality").pooled.tolist() == [1, 1, 1]


def test_without_normalization_the_metric_weights_are_taken_as_they_are():
    assert vote([FIRST], [0.5], [1, 1, 1], normalize=False).pooled[0] == pytest.approx(0.5 * (0.9 + 0.1) / 2)
    assert vote([FIRST], [0.5], [1, 1, 1]).pooled[0] == pytest.approx((0.9 + 0.1) / 2)


def test_a_removed_retriever_cannot_win_but_votes_unless_dropped():
    weights = [0.5, 0.1, 0.2]  # the second is at the filter, so it is removed
    paper = vote([FIRST], [1], weights)
    np.testing.assert_allclose(paper.pooled, [(0.9 + 0.1) / 2, (0.9 + 0.2) / 2, (0.1 + 0.2) / 2])
    np.testing.assert_allclose(paper.scores, [0.5 * (0.9 + 0.1) / 2, np.nan, 0.2 * (0.1 + 0.2) / 2])
    dropped = vote([FIRST], [1], weights, drop_filtered=True)
    np.testing.assert_allclose(dropped.pooled, [0.1, np.nan, 0.1])
    np.testing.assert_allclose(dropped.scores, [0.5 * 0.1, np.nan, 0.2 * 0.1])
    assert paper.winner == dropped.winner == 0


@pytest.mark.parametrize("drop", [False, True])
def test_one_survivor_wins(drop):
    outcome = vote([FIRST], [1], [0.1, 0.0, 0.3], drop_filtered=drop)
    assert outcome.winner == 2
    assert math.isnan(outcome.scores[0])
    assert math.isnan(outcome.scores[2]) == drop


def test_one_answer_wins():
    assert vote([[[1.0]]], [1], [0.3]).winner == 0


def test_a_survivor_wins_even_with_a_score_below_zero():
    assert vote([-np.array(FIRST)], [1], [0.0, 0.5, 0.6]).winner == 2


@pytest.mark.parametrize("drop", [False, True])
def test_no_survivor_is_an_error_that_says_so(drop):
    with pytest.raises(InvalidInput, match=r"retriever_weights is .*allowed: at least one above 0.1"):
        vote([FIRST], [1], [0.1, 0.0, 0.05], drop_filtered=drop)


def test_ties_go_to_the_first_whatever_the_order_of_summation():
    # All three have the others' similarities 0.1, 0.2, 0.3, in different orders.
    row = [0.1, 0.2, 0.3]
    similarity = np.array([[1, *row], [row[2], 1, row[1], row[0]], [row[1], row[2], 1, row[0]], [0, 0, 0, 1]])
    assert (0.1 + 0.2) + 0.3 != (0.3 + 0.2) + 0.1
    outcome = vote([similarity], [1], [1, 1, 1, 1])
    assert outcome.pooled[0] == outcome.pooled[1] == outcome.pooled[2]
    assert outcome.winner == 0


def test_agreement_is_the_share_of_the_others_strictly_above_the_threshold():
    assert agreement(FIRST, 0) == 1 / 2  # 0.9 is alike, 0.1 is not, and the winner itself does not count
    assert agreement(FIRST, 0, threshold=0.9) == 0 / 2
    assert agreement([[1, 0.9], [0.1, 1]], 1) == 0.0  # the winner's row
    assert agreement([[0, 0.9], [0.9, 0]], 1) == 1.0
    assert math.isnan(agreement([[1.0]], 0))


@pytest.mark.parametrize(
    ("similarity", "winner", "complaint"),
    [
        (FIRST, 3, "winner is 3; allowed: whole numbers from 0 to 2"),
        (FIRST, -1, "winner is -1"),
        ([[1, 0]], 0, r"similarity.shape is \(1, 2\)"),
        ([[1, math.nan], [0, 1]], 0, r"similarity\[0, 1\] is nan"),
    ],
)
def test_bad_agreement_input_is_refused(similarity, winner, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        agreement(similarity, winner)


@property_test
@given(
    arrays(np.float64, (2, 5, 5), elements=st.floats(0, 1)),
    st.permutations(range(5)),
    poolings,
    st.booleans(),
)
def test_reordering_the_retrievers_reorders_the_scores(similarity, order, pooling, drop):
    weights = np.array([0.5, 0.2, 0.05, 0.4, 0.3])
    order = np.array(order)
    before = vote(similarity, [0.7, 0.3], weights, pooling=pooling, drop_filtered=drop)
    moved = similarity[:, order][:, :, order]
    after = vote(moved, [0.7, 0.3], weights[order], pooling=pooling, drop_filtered=drop)
    np.testing.assert_allclose(after.scores, before.scores[order])
    assert after.scores[after.winner] == pytest.approx(before.scores[before.winner])


@property_test
@given(arrays(np.float64, (1, 4, 4), elements=st.floats(0, 1)), poolings)
def test_diagonals_are_not_looked_at(similarity, pooling):
    other = similarity.copy()
    other[:, range(4), range(4)] = 7.0
    np.testing.assert_array_equal(
        vote(similarity, [1], [1] * 4, pooling=pooling).scores,
        vote(other, [1], [1] * 4, pooling=pooling).scores,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"similarity": FIRST}, r"similarity.shape is \(3, 3\); allowed: an array of 3 dimensions"),
        ({"similarity": [[[1, 0, 0], [0, 1, 0]]]}, r"similarity.shape is \(2, 3\)"),
        (
            {"similarity": [[[1, math.nan], [0, 1]]], "retriever_weights": [1, 1]},
            r"similarity\[0, 0, 1\] is nan",
        ),
        ({"metric_weights": [1, 1]}, r"metric_weights.shape is \(2,\); allowed: \(1,\)"),
        ({"metric_weights": [0]}, "metric_weights is .*at least one above 0"),
        ({"metric_weights": [-1]}, r"metric_weights\[0\] is -1"),
        ({"retriever_weights": [1, 1]}, r"len\(retriever_weights\) is 2"),
        ({"retriever_weights": [1, 1, -1]}, r"retriever_weights\[2\] is -1"),
        ({"pooling": "median"}, "pooling is 'median'; allowed: 'mean', 'max', 'majority', 'plurality'"),
        ({"threshold": math.nan}, "threshold is nan"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {"similarity": [FIRST], "metric_weights": [1], "retriever_weights": [1, 1, 1]}
    with pytest.raises(InvalidInput, match=complaint):
        vote(**(good | arguments))
