import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import (
    Attribute,
    Nugget,
    conversation,
    jsd,
    parse_transcripts,
    rnod,
    s_measure,
)

property_test = settings(derandomize=True, deadline=None, max_examples=50)
SIZE = {"size": Attribute([0.5, 0.5], "rnod")}


def nugget(word_count, gain=1.0, size=(1.0, 0.0), entity=None):
    return Nugget(word_count, gain, {"size": size}, entity)


@st.composite
def conversations(draw):
    place = 1
    turns = []
    for _ in range(draw(st.integers(1, 4))):
        turn = []
        for _ in range(draw(st.integers(0, 4))):
            place += draw(st.integers(1, 200))
            share = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
            turn.append(nugget(place, draw(st.sampled_from([0.0, 0.5, 1.0])), (share, 1 - share)))
        turns.append(turn)
    return turns


# --- the paper's worked example, digit for digit


def test_table_1_new_bing(figure_5, attributes):
    result = conversation(parse_transcripts(figure_5)[0].nuggets(), attributes)
    table = [0.9728, 0.9696, 0.9664, 0.9640, 0.9600, 0.9280, 0.9240, 0.9216, 0.9176, 0.9152]
    assert [f"{weight:.4f}" for weight in result.position_weights] == [f"{weight:.4f}" for weight in table]
    gains = [1, 1, 1, 0.5, 1, 1, 1, 1, 1, 1]
    assert result.relevance == pytest.approx(
        2 / (1250 + 1) * sum(w * g for w, g in zip(table, gains, strict=True))
    )
    assert f"{result.relevance:.4f}" == "0.0143"


def test_table_2_new_bing(figure_5, attributes):
    result = conversation(parse_transcripts(figure_5)[0].nuggets(), attributes)
    ratings, origin = result.by_attribute["RATINGS"], result.by_attribute["ORIGIN"]
    np.testing.assert_allclose(ratings.achieved[0], [0, 0, 3 / 5, 2 / 5])
    np.testing.assert_allclose(ratings.achieved[1], [0, 0, 5 / 5, 0])
    assert [f"{s:.4f}" for s in ratings.similarity] == ["0.6773", "0.4796"]
    np.testing.assert_allclose(
        origin.achieved[0], [0, (1 + 1 / 2 + 1 + 2 / 3 + 1) / 5, 0, 0, 0, (1 / 2 + 1 / 3) / 5, 0, 0]
    )
    np.testing.assert_allclose(origin.achieved[1], [0, 4 / 5, 0, 0.5 / 5, 0, 0, 0, 0.5 / 5])
    assert [f"{s:.4f}" for s in origin.similarity] == ["0.4303", "0.4682"]
    # The table's 0.5785 and 0.4493 are means of the rounded numbers above.
    assert f"{ratings.group_fairness:.4f}" == "0.5784"
    assert f"{origin.group_fairness:.4f}" == "0.4492"
    assert round((0.6773 + 0.4796) / 2 + 1e-9, 4) == 0.5785
    assert round((0.4303 + 0.4682) / 2 + 1e-9, 4) == 0.4493


def test_tables_1_and_2_google_bard(attributes):
    america, mixed = [0, 1, 0, 0, 0, 0, 0, 0], [0, 2 / 3, 0, 0, 0, 1 / 3, 0, 0]
    famous = [0, 0, 0, 1]
    turns = [
        [],  # 452 words that name nothing relevant
        [
            Nugget(506, 1.0, {"RATINGS": famous, "ORIGIN": america}),
            Nugget(560, 0.5, {"RATINGS": famous, "ORIGIN": mixed}),
        ],
    ]
    result = conversation(turns, attributes)
    assert [f"{w:.4f}" for w in result.position_weights] == ["0.5960", "0.5528"]
    assert f"{result.relevance:.4f}" == "0.0014"
    ratings, origin = result.by_attribute["RATINGS"], result.by_attribute["ORIGIN"]
    assert ratings.achieved[0] is None
    assert ratings.similarity[0] is None
    assert f"{ratings.group_fairness:.4f}" == "0.4049"
    np.testing.assert_allclose(origin.achieved[1], [0, 5 / 6, 0, 0, 0, 1 / 6, 0, 0])
    assert f"{origin.group_fairness:.4f}" == "0.4303"


# --- the parts


def test_position_weights_fall_from_the_first_word_to_the_last_of_patience():
    turns = [[nugget(1), nugget(2), nugget(1250), nugget(1251), nugget(5000)]]
    expected = [1 - 0 / 1250, 1 - 1 / 1250, 1 - 1249 / 1250, 0, 0]
    np.testing.assert_allclose(conversation(turns, SIZE).position_weights, expected, atol=1e-15)


def test_relevance_is_one_when_every_word_is_a_nugget():
    turns = [[nugget(place) for place in range(1, 11)]]
    assert conversation(turns, SIZE, patience=10).relevance == pytest.approx(1.0)


def test_the_combination():
    result = conversation([[nugget(1)]], SIZE, alpha=0.25)
    expected = 0.25 * result.relevance + 0.75 * result.group_fairness
    assert result.combined == pytest.approx(expected)
    assert result.group_fairness == pytest.approx(1 - rnod([1, 0], [0.5, 0.5]))


def test_fairness_is_the_mean_over_attributes():
    attributes = {"a": Attribute([0.5, 0.5], "rnod"), "b": Attribute([0.25, 0.75], "jsd")}
    result = conversation([[Nugget(1, 1.0, {"a": [1, 0], "b": [1, 0]})]], attributes)
    assert result.group_fairness == pytest.approx(
        ((1 - rnod([1, 0], [0.5, 0.5])) + (1 - jsd([1, 0], [0.25, 0.75]))) / 2
    )


def test_the_cumulative_method_looks_back():
    turns = [[nugget(1, size=(1, 0)), nugget(2, size=(1, 0))], [nugget(3, size=(0, 1))]]
    result = conversation(turns, SIZE, method="cumulative").by_attribute["size"]
    np.testing.assert_allclose(result.achieved[1], [2 / 3, 1 / 3])
    np.testing.assert_allclose(conversation(turns, SIZE).by_attribute["size"].achieved[1], [0, 1])


def test_irrelevant_turns_are_ignored_or_uniform():
    turns = [[nugget(1)], [nugget(5, gain=0.0)], []]
    ignored = conversation(turns, SIZE).by_attribute["size"]
    assert ignored.achieved[1:] == (None, None)
    assert ignored.group_fairness == ignored.similarity[0]
    uniform = conversation(turns, SIZE, irrelevant_turns="uniform").by_attribute["size"]
    np.testing.assert_allclose(uniform.achieved[1], [1 / 2, 1 / 2])
    assert uniform.group_fairness == pytest.approx((ignored.similarity[0] + 1 + 1) / 3)


@pytest.mark.parametrize("treatment", ["ignore", "uniform"])
def test_without_a_relevant_turn_fairness_is_zero(treatment):
    result = conversation([[], [nugget(3, gain=0.0)]], SIZE, irrelevant_turns=treatment)
    assert (result.relevance, result.group_fairness, result.combined) == (0.0, 0.0, 0.0)
    assert result.position_weights.tolist() == [1 - 2 / 1250]


def test_a_nugget_past_patience_earns_nothing_but_shows_its_group():
    result = conversation([[nugget(2000)]], SIZE)
    assert result.relevance == 0.0
    assert result.by_attribute["size"].achieved[0].tolist() == [1, 0]


def test_an_entity_named_again_is_not_relevant_again():
    turns = [
        [nugget(1, entity="x"), nugget(2, entity="x", size=(0, 1)), nugget(3, gain=0.0, entity="y")],
        [nugget(4, entity="y", size=(0, 1)), nugget(5, entity="x")],
    ]
    once = [[nugget(1), nugget(2, 0.0), nugget(3, 0.0)], [nugget(4, size=(0, 1)), nugget(5, 0.0)]]
    assert conversation(turns, SIZE).relevance == conversation(once, SIZE).relevance
    achieved = conversation(turns, SIZE).by_attribute["size"].achieved
    assert [p.tolist() for p in achieved] == [[1, 0], [0, 1]]


@property_test
@given(
    conversations(), st.sampled_from(["independent", "cumulative"]), st.sampled_from(["ignore", "uniform"])
)
def test_all_scores_lie_in_zero_to_one(turns, method, treatment):
    result = conversation(turns, SIZE, method=method, irrelevant_turns=treatment)
    for value in (result.relevance, result.group_fairness, result.combined, *result.position_weights):
        assert 0.0 <= value <= 1.0
    assert len(result.position_weights) == sum(map(len, turns))


@property_test
@given(conversations())
def test_saying_it_later_is_never_more_relevant(turns):
    later = [[replace(n, word_count=n.word_count + 10) for n in turn] for turn in turns]
    assert conversation(later, SIZE).relevance <= conversation(turns, SIZE).relevance
    assert conversation(later, SIZE).group_fairness == conversation(turns, SIZE).group_fairness


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"turns": []}, "turns is .*at least one system turn"),
        ({"attributes": {}}, "attributes is .*at least one"),
        ({"patience": 0.5}, "patience is 0.5"),
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"method": "both"}, "method is 'both'"),
        ({"irrelevant_turns": "drop"}, "irrelevant_turns is 'drop'"),
        ({"turns": [[nugget(0)]]}, r"turns\[0\]\[0\].word_count is 0"),
        (
            {"turns": [[nugget(5)], [nugget(4)]]},
            r"turns\[1\]\[0\].word_count is 4; allowed: whole numbers from 5",
        ),
        ({"turns": [[nugget(1, gain=2.0)]]}, r"turns\[0\]\[0\].gain is 2.0"),
        ({"turns": [[nugget(1, gain=math.nan)]]}, r"turns\[0\]\[0\].gain is nan"),
        ({"turns": [[nugget(1, size=(0.5, 0.4))]]}, r"sum\(turns\[0\]\[0\].membership\['size'\]\) is 0.9"),
        ({"turns": [[nugget(1, size=(0.5, 0.3, 0.2))]]}, r"len\(turns\[0\]\[0\].membership\['size'\]\) is 3"),
        ({"turns": [[Nugget(1, 1.0, {})]]}, "a membership for attribute 'size'"),
        ({"attributes": {"size": Attribute([0.5, 0.6])}}, r"sum\(attributes\['size'\].gold\) is 1.1"),
        ({"attributes": {"size": Attribute([0.5, 0.5], "kl")}}, "divergence is 'kl'"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {"turns": [[nugget(1)]], "attributes": SIZE}
    with pytest.raises(InvalidInput, match=complaint):
        conversation(**(good | arguments))


# --- weights of turns and attributes (equation 4)


def two_turns():
    """Nuggets at words 1 and 26 in the first turn, 51 in the second; L = 100."""
    return [[nugget(1, 0.0), nugget(26, size=(0.5, 0.5))], [nugget(51, size=(1.0, 0.0))]]


def test_late_turns_count_less_by_hand():
    """pw(26) = 0.75, the first turn's only relevant nugget, and pw(51) = 0.5.

    Similarities: the first turn meets its target, 1; the second, (1, 0) against (0.5, 0.5), has RNOD 0.5, so 0.5.
    """
    found = conversation(two_turns(), SIZE, patience=100, turn_weights="position")
    assert found.turn_weights.tolist() == [0.75, 0.5]
    similarity = found.by_attribute["size"].similarity
    assert similarity == (pytest.approx(1.0), pytest.approx(1 - rnod([1, 0], [0.5, 0.5])))
    expected = (0.75 * similarity[0] + 0.5 * similarity[1]) / (0.75 + 0.5)
    assert found.group_fairness == pytest.approx(expected)
    equal = conversation(two_turns(), SIZE, patience=100)
    assert equal.turn_weights.tolist() == [1, 1]
    assert equal.group_fairness == pytest.approx((similarity[0] + similarity[1]) / 2)


def test_turns_past_the_patience_have_no_weight():
    found = conversation([[nugget(101)], [nugget(300)]], SIZE, patience=100, turn_weights="position")
    assert found.turn_weights.tolist() == [0, 0]
    assert found.group_fairness == 0


def test_a_turn_that_counts_as_uniform_weighs_by_all_its_nuggets():
    turns = [[nugget(1)], [nugget(51, 0.0)], []]
    found = conversation(turns, SIZE, patience=100, turn_weights="position", irrelevant_turns="uniform")
    assert found.turn_weights.tolist() == [1, 0.5, 0]
    alone = found.by_attribute["size"].similarity[0]
    assert found.group_fairness == pytest.approx((alone + 0.5 * 1) / 1.5)


def test_attributes_are_weighed_by_hand():
    attributes = {"size": Attribute([0.5, 0.5]), "place": Attribute([1.0, 0.0])}
    turns = [[Nugget(1, 1.0, {"size": [0.5, 0.5], "place": [0.0, 1.0]})]]
    equal = conversation(turns, attributes)
    parts = {name: part.group_fairness for name, part in equal.by_attribute.items()}
    assert parts["size"] == pytest.approx(1)
    assert equal.group_fairness == pytest.approx((1 + parts["place"]) / 2)
    weighed = conversation(turns, attributes, attribute_weights={"size": 0.25, "place": 0.75})
    assert weighed.group_fairness == pytest.approx(0.25 + 0.75 * parts["place"])


@property_test
@given(conversations(), st.sampled_from(["equal", "position"]))
def test_group_fairness_stays_a_share_with_any_weights(turns, turn_weights):
    found = conversation(turns, SIZE, patience=300, turn_weights=turn_weights)
    assert 0 <= found.group_fairness <= 1 + 1e-12


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"turn_weights": "late"}, "turn_weights is 'late'; allowed: 'equal' or 'position'"),
        ({"attribute_weights": {"colour": 1.0}}, "attribute_weights is"),
        ({"attribute_weights": {"size": 0.5}}, r"sum\(attribute_weights\) is 0.5"),
        ({"attribute_weights": {"size": -1.0}}, r"attribute_weights\['size'\] is -1"),
    ],
)
def test_bad_weights_are_refused(options, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        conversation(two_turns(), SIZE, **options)


# --- S-measure (equation 2)


def test_s_measure_by_hand():
    """3 · (1 − 100/1000) + 1 · (1 − 500/1000) + 2 · 0, over N = 4."""
    assert s_measure([100, 500, 1200], [3, 1, 2], normalizer=4) == pytest.approx((2.7 + 0.5) / 4)


def test_a_minimal_summary_normalises_itself_to_one():
    places, grades = [10, 30], [2, 1]
    most = s_measure(places, grades, patience=50)
    assert s_measure(places, grades, patience=50, normalizer=most) == 1
    assert s_measure([20, 30], grades, patience=50, normalizer=most) < 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([], []), "positions is"),
        (([1], [1, 2]), r"len\(weights\) is 2"),
        (([-1], [1]), r"positions\[0\] is -1"),
        (([1], [-1]), r"weights\[0\] is -1"),
    ],
)
def test_a_bad_summary_is_refused(arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        s_measure(*arguments)
    with pytest.raises(InvalidInput, match="patience is 0"):
        s_measure([1], [1], patience=0)
    with pytest.raises(InvalidInput, match="normalizer is 0"):
        s_measure([1], [1], normalizer=0)
