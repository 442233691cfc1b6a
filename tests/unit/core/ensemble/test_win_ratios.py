import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenmesh_core.ensemble import relative_win_ratio, upper_bound
from evenmesh_core.errors import InvalidInput

property_test = settings(derandomize=True, deadline=None, max_examples=50)
matrices = st.tuples(st.integers(2, 6), st.integers(1, 8)).flatmap(lambda shape: arrays(np.bool_, shape))

CORRECT = [
    [1, 1, 0, 0, 0],  # wrong on 3
    [1, 0, 1, 0, 1],  # wrong on 2
    [1, 1, 1, 1, 1],  # never wrong
]


def test_ratios_by_hand():
    ratios = relative_win_ratio(CORRECT)
    np.testing.assert_array_equal(
        ratios.matrix, [[0 / 3, 1 / 2, np.nan], [2 / 3, 0 / 2, np.nan], [3 / 3, 2 / 2, np.nan]]
    )
    np.testing.assert_allclose(ratios.mrwr, [1 / 2, 2 / 3, (1 + 1) / 2])
    np.testing.assert_allclose(ratios.mrlr, [(2 / 3 + 1) / 2, (1 / 2 + 1) / 2, np.nan])
    assert ratios.mrwr_undefined.tolist() == [1, 1, 0]
    assert ratios.mrlr_undefined.tolist() == [0, 0, 2]


@property_test
@given(matrices)
def test_against_the_definition(correct):
    ratios = relative_win_ratio(correct)
    for i, j in itertools.product(range(len(correct)), repeat=2):
        lost = int((~correct[j]).sum())
        if lost == 0:
            assert math.isnan(ratios.matrix[i, j])
        else:
            assert ratios.matrix[i, j] == pytest.approx(int((correct[i] & ~correct[j]).sum()) / lost)
    assert np.nanmax(np.append(ratios.matrix, 0)) <= 1


def test_a_retriever_right_whenever_another_is_never_loses():
    assert relative_win_ratio([[1, 1, 0], [1, 0, 0]]).mrlr.tolist() == [0.0, 1 / 2]


@property_test
@given(matrices)
def test_upper_bounds_against_all_pools(correct):
    bounds = upper_bound(correct)
    for size in range(1, len(correct) + 1):
        pools = [
            correct[list(pool)].any(axis=0).mean()
            for pool in itertools.combinations(range(len(correct)), size)
        ]
        np.testing.assert_allclose(bounds.by_size[size - 1], sorted(pools))
        assert bounds.mean[size - 1] == pytest.approx(np.mean(pools))
    assert (np.diff(bounds.mean) >= -1e-12).all()


def test_sixteen_retrievers_have_sixty_five_thousand_pools():
    correct = np.random.default_rng(0).random((16, 500)) < 0.5
    bounds = upper_bound(correct)
    assert [len(pools) for pools in bounds.by_size] == [math.comb(16, size) for size in range(1, 17)]
    np.testing.assert_allclose(bounds.by_size[0], np.sort(correct.mean(axis=1)))
    # mean over pools of size s: a question that w retrievers get wrong is failed by C(w, s) of C(16, s) pools
    wrong = (~correct).sum(axis=0)
    expected = [1 - np.mean([math.comb(int(w), s) for w in wrong]) / math.comb(16, s) for s in range(1, 17)]
    np.testing.assert_allclose(bounds.mean, expected)


@pytest.mark.parametrize("function", [relative_win_ratio, upper_bound])
@pytest.mark.parametrize(
    ("correct", "complaint"),
    [
        ([], "correct is"),
        ([1, 0], "correct.shape"),
        ([[0.5, 1], [0, 1]], "correct is .*a matrix of 0 and 1"),
        ([[2, 1], [0, 1]], r"correct\[0, 0\] is 2"),
    ],
)
def test_bad_input_is_refused(function, correct, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        function(correct)


def test_too_few_or_too_many_retrievers_are_refused():
    with pytest.raises(InvalidInput, match="at least 2 retrievers"):
        relative_win_ratio([[1, 0]])
    with pytest.raises(InvalidInput, match="at most 20 retrievers"):
        upper_bound(np.ones((21, 1)))
