import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenmesh_core.ensemble import error_indicators, error_relative_win_ratio
from evenmesh_core.errors import InvalidInput

property_test = settings(derandomize=True, deadline=None, max_examples=50)
judgements = st.tuples(*[arrays(np.bool_, (3, 6))] * 3)


def test_the_four_kinds_by_hand():
    # found and used; found, wrong part taken; found, made up; not found, wrong; not found, made up and right
    correct = [[1, 0, 0, 0, 1]]
    answer_held = [[1, 1, 1, 0, 0]]
    response_held = [[1, 1, 0, 1, 0]]
    errors = error_indicators(correct, answer_held, response_held)
    assert errors.retriever_error.tolist() == [[False, False, False, True, True]]
    assert errors.hallucination_error.tolist() == [[False, False, True, False, True]]
    assert errors.extraction_error.tolist() == [[False, True, False, False, False]]
    assert errors.lucky_guess.tolist() == [[False, False, False, False, True]]
    assert errors.wrong.tolist() == [[False, True, True, True, False]]


@property_test
@given(judgements)
def test_equation_4_gives_the_wrong_answers_where_judgements_agree(judged):
    correct, answer_held, response_held = judged
    # If the response is right, documents hold both or neither: they are the same answer.
    response_held = np.where(correct, answer_held, response_held)
    errors = error_indicators(correct, answer_held, response_held)
    np.testing.assert_array_equal(errors.wrong, ~correct)


@property_test
@given(judgements)
def test_kinds_follow_appendix_b_and_exclude_each_other(judged):
    correct, answer_held, response_held = (matrix.astype(int) for matrix in judged)
    errors = error_indicators(*judged)
    e_r, e_h = 1 - answer_held, 1 - response_held
    np.testing.assert_array_equal(errors.extraction_error, (1 - e_r) * (1 - e_h) * (1 - correct))
    np.testing.assert_array_equal(errors.lucky_guess, e_r * e_h * correct)
    assert not (errors.extraction_error & errors.lucky_guess).any()


def ratio(errors, counted, i, j):
    avoided = sum((1 - errors[i]) * errors[j] * counted)
    made = sum(errors[j] * counted)
    return avoided / made if made else np.nan


@property_test
@given(judgements)
def test_ratios_follow_appendix_b(judged):
    errors = error_indicators(*judged)
    ratios = error_relative_win_ratio(errors)
    e_r, e_h = errors.retriever_error.astype(int), errors.hallucination_error.astype(int)
    e_e, lucky = errors.extraction_error.astype(int), errors.lucky_guess.astype(int)
    everything = np.ones(6, dtype=int)
    for i, j in itertools.product(range(3), repeat=2):
        both_found = (1 - e_r[i]) * (1 - e_r[j])
        both_failed = e_r[i] * e_h[i] * e_r[j] * e_h[j]
        expected = [
            ratio(e_r, everything, i, j),
            ratio(e_h, everything, i, j),
            ratio(e_e, both_found, i, j),
            ratio(lucky, both_failed, i, j),
        ]
        found = [
            ratios.retriever_error[i, j],
            ratios.hallucination_error[i, j],
            ratios.extraction_error[i, j],
            ratios.lucky_guess[i, j],
        ]
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([[1, 0]], [[1]], [[1, 0]]), r"answer_held.shape is \(1, 1\); allowed: \(1, 2\)"),
        (([[1]], [[1]], [[0.5]]), "response_held is .*a matrix of 0 and 1"),
        (([1], [[1]], [[1]]), "correct.shape"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        error_indicators(*arguments)
