import math

import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import Attribute, Transcript
from evenmesh_core.group_fairness.transcripts import Turn
from evenmesh_lab.files import read_attributes, read_conversations
from evenmesh_lab.studies import Bootstrap, conversation

QUICK = Bootstrap(num_resamples=100)


def test_a_conversation_scores_as_the_formulas_say(examples):
    found = conversation.measure(
        {"talker": read_conversations(examples / "talker.txt")},
        read_attributes(examples / "attributes.json"),
        bootstrap=QUICK,
    )

    last = found.rows[1]
    # "Name a film about bicycles" and "The Chain URL": the nugget ends at word 8 of a patience of 1,250.
    assert (last.topic, last.num_words, last.num_nuggets) == ("C2", 8, 1)
    assert last.relevance == pytest.approx(2 / (1250 + 1) * (1 - (8 - 1) / 1250))
    assert last.combined == pytest.approx(0.5 * last.relevance + 0.5 * last.group_fairness)
    assert last.group_fairness == pytest.approx(
        (last.by_attribute["RATINGS"] + last.by_attribute["ORIGIN"]) / 2
    )


def test_trials_of_a_topic_are_one_topic(examples):
    once = read_conversations(examples / "talker.txt")
    attributes = read_attributes(examples / "attributes.json")

    found = conversation.measure({"a": [*once, *once], "b": once}, attributes, bootstrap=QUICK)

    assert [row.trial for row in found.rows if row.system == "a"] == [1, 1, 2, 2]
    assert found.summaries[0].num_conversations == 4
    assert found.summaries[0].means["relevance"].defined == 2
    assert found.comparisons[0].difference.value == 0.0


def test_what_an_attribute_lacks_is_named_with_system_and_topic(examples):
    with pytest.raises(InvalidInput, match=r"talker, topic C1: .*allowed: a membership for attribute 'AGE'"):
        conversation.measure(
            {"talker": read_conversations(examples / "talker.txt")}, {"AGE": Attribute([0.5, 0.5], "rnod")}
        )


def test_fairness_is_also_of_the_relevant_conversations_alone(examples):
    once = read_conversations(examples / "talker.txt")
    nothing = [Transcript(one.topic, (Turn("system", 9),)) for one in once]
    attributes = read_attributes(examples / "attributes.json")

    found = conversation.measure(
        {"a": once, "b": [once[0], nothing[1]], "c": nothing, "d": [*once, *nothing]},
        attributes,
        bootstrap=QUICK,
    )

    fair = [row.group_fairness for row in found.rows[:2]]
    a, b, c, d = (one.means for one in found.summaries)
    assert [one["relevant"].value for one in (a, b, c, d)] == [1.0, 0.5, 0.0, 0.5]
    assert a["fairness_where_relevant"].value == pytest.approx(sum(fair) / 2)
    assert (b["fairness_where_relevant"].value, b["fairness_where_relevant"].defined) == (fair[0], 1)
    assert b["group_fairness"].value == pytest.approx(fair[0] / 2)  # GF is 0 where R is 0
    assert math.isnan(c["fairness_where_relevant"].value)
    # Of two trials, of which one is relevant, that one counts.
    assert d["fairness_where_relevant"].value == pytest.approx(sum(fair) / 2)
    with_b = next(one for one in found.comparisons if one.measure == "relevant")
    assert (with_b.difference.value, with_b.mcnemar.only_first) == (0.5, 1)
