import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import Attribute
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
