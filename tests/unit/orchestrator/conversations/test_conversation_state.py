"""Conversations: what they hold and how they stand; tests/contract has what stores them."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import MeshError
from evenmesh_core.group_fairness import Attribute, conversation, jsd, parse_transcripts
from evenmesh_orchestrator.conversations.conversation import Conversation, Limits, TurnRecord
from evenmesh_orchestrator.conversations.options import Options, Target
from evenmesh_orchestrator.conversations.sources import Cited

GENDER = Target("group", ("female", "male", "neutral"), (1 / 3,) * 3, 3)
HALF = Target("provider", ("P", "Q"), (0.5, 0.5), 3)


def cited(name: str, level: int = 2, **attributes: str) -> Cited:
    """A cited passage of the collection ``c``."""
    return Cited(name, "", "c", attributes, level)


def conversation_of(
    *turns: TurnRecord, targets: tuple[Target, ...] = (HALF,), **options: Any
) -> Conversation:
    """A conversation of these turns."""
    made = Conversation("id", Limits(), options=Options(targets=targets, **options))
    for turn in turns:
        made.add(turn)
    return made


def test_membership_is_of_one_group_of_several_or_of_none() -> None:
    assert GENDER.membership("male") == (0, 1, 0)
    assert GENDER.membership("female; male") == (Fraction(1, 2), Fraction(1, 2), 0)
    assert GENDER.membership("female;unheard of") == (1, 0, 0)
    assert GENDER.membership("unheard of") is None
    assert GENDER.membership("") is None
    assert Target("p", ("a;b", "c"), (0.5, 0.5), 3).membership("a;b") == (1, 0)


def test_a_conversation_stands_as_counted_by_hand() -> None:
    # "one two" 2 words, "red" 1, address 1; "three" 1, "blue" 1, addresses 2.
    made = conversation_of(
        TurnRecord("one two", "red", (cited("p0", provider="P"),)),
        TurnRecord("three", "blue", (cited("p1", provider="Q"), cited("p0", provider="P"))),
    )
    state = made.state()
    assert state.num_words == made.num_words == 2 + 1 + 1 + 1 + 1 + 2
    assert [[one.word_count for one in turn] for turn in state.nuggets] == [[4], [7, 8]]
    assert state.repeated() == [False, True]
    found = conversation(state.nuggets, {"provider": Attribute(HALF.shares, "jsd")})
    assert found.relevance == pytest.approx(2 / 1251 * ((1 - 3 / 1250) + (1 - 6 / 1250)))
    assert found.group_fairness == pytest.approx(1 - jsd([1, 0], [0.5, 0.5]))


def test_what_is_saved_reads_as_what_is_measured() -> None:
    made = conversation_of(
        TurnRecord("# a heading?\n\n## two", "#no tag\nan answer", (cited("a b", provider="P"),)),
        TurnRecord("next", ""),
    )
    state = made.state()
    assert state.text == (
        "### U1\n\\# a heading?\n\\## two\n### S1 o\n\\#no tag\nan answer\nevenmesh://c/a%20b\n#L2\n"
        "#provider: (1,0) #P\n### U2\nnext\n### S2 x\n"
    )
    (read,) = parse_transcripts(f"##### topic\n{state.text}")
    assert tuple(map(tuple, read.nuggets())) == state.nuggets
    assert sum(turn.words for turn in read.turns) == state.num_words


@given(st.text(max_size=40), st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_any_text_can_be_saved(question: str, answer: str, name: str) -> None:
    made = conversation_of(TurnRecord(question, answer, (cited(name, provider="Q"),)))
    (read,) = parse_transcripts(f"##### topic\n{made.state().text}")
    assert [len(turn.annotations) for turn in read.turns] == [0, 1]
    assert read.turns[0].words == len(question.split())


def test_a_source_without_a_group_is_of_all_alike_and_counted() -> None:
    state = conversation_of(TurnRecord("q", "a", (cited("p"), cited("r", provider="Q")))).state()
    assert state.sources[0][0].membership["provider"] == (Fraction(1, 2), Fraction(1, 2))
    assert state.num_ungrouped == 1


def test_what_is_not_useful_is_not_relevant_and_an_attribute_can_tell_entities_apart() -> None:
    made = conversation_of(
        TurnRecord(
            "q",
            "a",
            (cited("p1", level=0, provider="P", document="d"), cited("p2", provider="P", document="d")),
        ),
        entity_attribute="document",
    )
    state = made.state()
    assert [one.entity for one in state.sources[0]] == ["evenmesh://c/d"] * 2
    assert [one.gain for one in state.nuggets[0]] == [0.0, 1.0]
    assert state.repeated() == [False, False]


def test_other_targets_hold_for_the_turns_so_far() -> None:
    made = conversation_of(TurnRecord("q", "a", (cited("p", provider="P", group="male"),)))
    made.relevance = 0.5
    made.set_options(Options(targets=(GENDER,)))
    assert made.state().sources[0][0].membership == {"group": (0, 1, 0)}
    assert made.relevance == 0.5  # R knows of no groups
    made.set_options(Options(targets=(GENDER,), entity_attribute="document"))
    assert made.relevance is None


def test_a_full_conversation_takes_no_turn() -> None:
    made = Conversation("id", Limits(turns=1, words=5))
    made.check_room("one two three four five")
    with pytest.raises(MeshError, match="more than 5 words"):
        made.check_room("one two three four five six")
    made.add(TurnRecord("one", "two"))
    with pytest.raises(MeshError, match="1 turns, the most") as caught:
        made.check_room("more")
    assert caught.value.reason == "CONVERSATION_FULL"


def test_sources_times_groups_are_bounded() -> None:
    groups = tuple(f"g{at}" for at in range(1000))
    made = Conversation("id", Limits(), options=Options(targets=(Target("a", groups, (1e-3,) * 1000, 3),)))
    made.check_room("Which?", 20)
    with pytest.raises(MeshError, match="fewer passages") as full:
        made.check_room("Which?", 21)
    assert full.value.reason == "CONVERSATION_FULL"
