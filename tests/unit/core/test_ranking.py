import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.ranking import top_k

property_test = settings(derandomize=True, deadline=None, max_examples=50)


def test_best_first_and_ties_by_ascending_id():
    assert top_k([1.0, 3.0, 3.0, 2.0], ["d", "c", "b", "a"], 3).tolist() == [2, 1, 3]


def test_a_tie_across_the_cut_goes_to_the_lower_ids():
    assert top_k([1.0, 1.0, 1.0, 1.0], [9, 4, 7, 2], 2).tolist() == [3, 1]


def test_ids_compare_as_numbers_or_as_texts():
    assert top_k([0.0, 0.0], [10, 9], 2).tolist() == [1, 0]
    assert top_k([0.0, 0.0], ["10", "9"], 2).tolist() == [0, 1]


def test_without_ids_the_place_breaks_ties():
    assert top_k([0.0, 1.0, 1.0], None, 5).tolist() == [1, 2, 0]


def test_the_two_zeros_tie():
    assert top_k([-0.0, 0.0], ["b", "a"], 2).tolist() == [1, 0]


@property_test
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30).flatmap(
        lambda scores: st.tuples(st.just(scores), st.permutations(range(len(scores))))
    ),
    st.integers(1, 35),
)
def test_against_a_full_sort(scored, k):
    scores, ids = scored
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], ids[place]))[:k]
    assert top_k(scores, ids, k).tolist() == expected
    assert top_k(scores, np.array(ids), k).tolist() == expected


@pytest.mark.parametrize(
    ("scores", "ids", "k", "complaint"),
    [
        ([], [], 1, "scores is"),
        ([np.nan], [1], 1, r"scores\[0\] is nan"),
        ([1.0], [1, 2], 1, r"len\(ids\) is 2; allowed: 1"),
        ([1.0], [1], 0, "k is 0"),
    ],
)
def test_bad_input_is_refused(scores, ids, k, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        top_k(scores, ids, k)
