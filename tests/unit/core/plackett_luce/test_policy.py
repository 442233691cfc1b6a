import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce import log_weights, normalize_scores

property_test = settings(derandomize=True, deadline=None, max_examples=50)
scores_lists = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30)


def test_scores_are_brought_to_one_and_two():
    assert normalize_scores([3.0, 1.0, 2.0]).tolist() == [1 + (3 - 1) / 2, 1 + 0 / 2, 1 + (2 - 1) / 2]


def test_negative_scores_are_ordinary():
    assert normalize_scores([-10.0, -30.0]).tolist() == [2.0, 1.0]


@pytest.mark.parametrize("scores", [[7.0], [0.0, 0.0, 0.0], [-2.5, -2.5]])
def test_scores_that_do_not_differ_make_a_uniform_policy(scores):
    assert normalize_scores(scores).tolist() == [1.0] * len(scores)


def test_scores_at_both_ends_of_float64():
    assert normalize_scores([-1.7e308, 0.0, 1.7e308]).tolist() == [1.0, 1.5, 2.0]


@property_test
@given(scores_lists)
def test_normalized_scores_keep_order_and_range(scores):
    normalized = normalize_scores(scores)
    assert normalized.min() == 1.0
    assert normalized.max() == (2.0 if len(set(scores)) > 1 else 1.0)
    assert (np.diff(normalized[np.argsort(scores, kind="stable")]) >= 0).all()


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0, [1, 1, 1]),
        (1, [2, 1, 1.5]),
        (2, [2 * 2, 1, 1.5 * 1.5]),
        (0.5, [2**0.5, 1, 1.5**0.5]),
        (100, [2.0**100, 1, 1.5**100]),
    ],
)
def test_log_weights_are_powers_of_normalized_scores(alpha, expected):
    np.testing.assert_allclose(log_weights([3.0, 1.0, 2.0], alpha), expected, rtol=1e-13)


def test_alpha_100_reaches_1e30_and_stays_finite():
    assert log_weights([0.0, 1.0], 100)[1] == pytest.approx(1.2676506e30)


@pytest.mark.parametrize("alpha", [-1e-9, 100.001, np.nan, np.inf, "2", None])
def test_alpha_out_of_range_is_refused_with_its_range(alpha):
    with pytest.raises(InvalidInput, match=r"alpha is .*; allowed: 0 \(uniform\) to 100") as caught:
        log_weights([1.0, 2.0], alpha)
    assert caught.value.argument == "alpha"


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ([], "scores is .*at least one"),
        ([[1.0, 2.0]], r"scores.shape is \(1, 2\); allowed: a vector"),
        (3.0, r"scores.shape is \(\)"),
        ([1.0, np.nan], r"scores\[1\] is nan; allowed: finite numbers"),
        ([np.inf, 1.0], r"scores\[0\] is inf"),
        (["a", "b"], "scores is .*a vector of numbers"),
        ([1.0, [2.0]], "scores is .*a vector of numbers"),
        (None, "scores is None"),
        ([1j], "scores is"),
    ],
)
def test_bad_scores_are_refused(scores, complaint):
    for function in (normalize_scores, lambda s: log_weights(s, 1)):
        with pytest.raises(InvalidInput, match=complaint):
            function(scores)
