import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import Attribute, jsd, ranked_list, rnod

property_test = settings(derandomize=True, deadline=None, max_examples=50)
SIZE = {"size": Attribute([0.5, 0.5], "rnod")}


def test_a_list_by_hand():
    # gains 1, 0, 2 of at most 2: stops 1/3, 0, 2/3
    result = ranked_list([1, 0, 2], {"size": [[1, 0], [0, 1], [0, 1]]}, SIZE, max_gain=2)
    abandon = [1 / 3, 0, (1 - 1 / 3) * 2 / 3]
    np.testing.assert_allclose(result.abandonment, abandon)
    assert result.relevance == pytest.approx(abandon[0] * 1 + abandon[2] * 1 / 3)
    first, third = 1 - rnod([1, 0], [0.5, 0.5]), 1 - rnod([1 / 2, 1 / 2], [0.5, 0.5])
    np.testing.assert_allclose(result.similarity["size"], [first, first, third])
    assert result.group_fairness["size"] == pytest.approx(abandon[0] * first + abandon[2] * third)
    assert result.score == pytest.approx((result.relevance + result.group_fairness["size"]) / 2)


def test_irbu_utility_decays_slowly():
    result = ranked_list([0, 1], {"size": [[1, 0], [1, 0]]}, SIZE, max_gain=1, utility="irbu")
    assert result.relevance == pytest.approx(1 / 2 * 0.99**2)


def test_weights_and_several_attributes():
    attributes = SIZE | {"place": Attribute([0.2, 0.8], "jsd")}
    memberships = {"size": [[1, 0]], "place": [[0, 1]]}
    weights = {"utility": 0.5, "size": 0.2, "place": 0.3}
    result = ranked_list([1], memberships, attributes, max_gain=1, weights=weights)
    expected = 0.5 * 1 + 0.2 * (1 - rnod([1, 0], [0.5, 0.5])) + 0.3 * (1 - jsd([0, 1], [0.2, 0.8]))
    assert result.score == pytest.approx(1 / 2 * expected)


def test_nothing_relevant():
    result = ranked_list([0, 0], {"size": [[1, 0], [1, 0]]}, SIZE, max_gain=3)
    assert (result.score, result.relevance, result.group_fairness["size"]) == (0.0, 0.0, 0.0)
    assert np.isnan(result.similarity["size"]).all()


def test_without_attributes_it_is_err():
    # gains 1 and 1 of at most 1: 1/2 · 1 + 1/2 · 1/2 · 1/2
    assert ranked_list([1, 1], {}, {}, max_gain=1).score == pytest.approx(1 / 2 + 1 / 2 * 1 / 2 * 1 / 2)


@property_test
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=10))
def test_scores_lie_in_zero_to_one_and_the_better_order_is_more_relevant(documents):
    gains = [gain for gain, _ in documents]
    memberships = {"size": [[share, 1 - share] for _, share in documents]}
    result = ranked_list(gains, memberships, SIZE, max_gain=3)
    assert 0 <= result.score <= 1
    assert result.abandonment.sum() <= 1 + 1e-12
    best = ranked_list(sorted(gains, reverse=True), {}, {}, max_gain=3)
    assert result.relevance <= best.relevance + 1e-12


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"gains": []}, "gains is"),
        ({"gains": [3, 0]}, r"gains\[0\] is 3.0; allowed: finite numbers from 0 to 2"),
        ({"max_gain": 0}, "max_gain is 0; allowed: numbers above 0"),
        ({"utility": "dcg"}, "utility is 'dcg'"),
        ({"memberships": {}}, "memberships is .*a matrix for attribute 'size'"),
        ({"memberships": {"size": [[1, 0]]}}, r"len\(memberships\['size'\]\) is 1; allowed: 2"),
        ({"memberships": {"size": [[1, 1], [1, 0]]}}, r"sum\(memberships\['size'\]\[0\]\) is 2"),
        ({"weights": {"size": 1.0}}, "weights is .*one weight for each of utility, size"),
        ({"weights": {"size": -1.0, "utility": 1.0}}, r"weights\['size'\] is -1"),
        ({"attributes": {"utility": SIZE["size"]}}, "attributes is 'utility'"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {"gains": [1, 0], "memberships": {"size": [[1, 0], [1, 0]]}, "attributes": SIZE, "max_gain": 2}
    with pytest.raises(InvalidInput, match=complaint):
        ranked_list(**(good | arguments))
