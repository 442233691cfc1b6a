"""Conversations: what they hold, how they stand, and how long they are kept."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.errors import FailedPrecondition, MeshError, NotFound
from meshkit.security.caller import DEFAULT_TENANT
from orchestrator.conversations.options import Options, Target
from orchestrator.conversations.shelf import Conversation, Limits, Shelf, Told
from orchestrator.conversations.sources import Cited
from ragcore.group_fairness import Attribute, conversation, jsd, parse_transcripts

GENDER = Target("group", ("female", "male", "neutral"), (1 / 3,) * 3, 3)
HALF = Target("provider", ("P", "Q"), (0.5, 0.5), 3)


def cited(name: str, level: int = 2, **attributes: str) -> Cited:
    """A cited passage of the collection ``c``."""
    return Cited(name, "", "c", attributes, level)


def talk(*turns: Told, targets: tuple[Target, ...] = (HALF,), **options: Any) -> Conversation:
    """A conversation of these turns."""
    made = Conversation("id", Limits(), options=Options(targets=targets, **options))
    for turn in turns:
        made.keep(turn)
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
    made = talk(
        Told("one two", "red", (cited("p0", provider="P"),)),
        Told("three", "blue", (cited("p1", provider="Q"), cited("p0", provider="P"))),
    )
    standing = made.standing()
    assert standing.num_words == made.num_words == 2 + 1 + 1 + 1 + 1 + 2
    assert [[one.word_count for one in turn] for turn in standing.nuggets] == [[4], [7, 8]]
    assert standing.repeated() == [False, True]
    found = conversation(standing.nuggets, {"provider": Attribute(HALF.shares, "jsd")})
    assert found.relevance == pytest.approx(2 / 1251 * ((1 - 3 / 1250) + (1 - 6 / 1250)))
    assert found.group_fairness == pytest.approx(1 - jsd([1, 0], [0.5, 0.5]))


def test_what_is_saved_reads_as_what_is_measured() -> None:
    made = talk(
        Told("# a heading?\n\n## two", "#no tag\nan answer", (cited("a b", provider="P"),)),
        Told("next", ""),
    )
    standing = made.standing()
    assert standing.text == (
        "### U1\n\\# a heading?\n\\## two\n### S1 o\n\\#no tag\nan answer\nragmesh://c/a%20b\n#L2\n"
        "#provider: (1,0) #P\n### U2\nnext\n### S2 x\n"
    )
    (read,) = parse_transcripts(f"##### topic\n{standing.text}")
    assert tuple(map(tuple, read.nuggets())) == standing.nuggets
    assert sum(turn.words for turn in read.turns) == standing.num_words


@given(st.text(max_size=40), st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_any_text_can_be_saved(question: str, answer: str, name: str) -> None:
    made = talk(Told(question, answer, (cited(name, provider="Q"),)))
    (read,) = parse_transcripts(f"##### topic\n{made.standing().text}")
    assert [len(turn.annotations) for turn in read.turns] == [0, 1]
    assert read.turns[0].words == len(question.split())


def test_a_source_without_a_group_is_of_all_alike_and_counted() -> None:
    standing = talk(Told("q", "a", (cited("p"), cited("r", provider="Q")))).standing()
    assert standing.sources[0][0].membership["provider"] == (Fraction(1, 2), Fraction(1, 2))
    assert standing.num_ungrouped == 1


def test_what_is_not_useful_is_not_relevant_and_an_attribute_can_tell_entities_apart() -> None:
    made = talk(
        Told(
            "q",
            "a",
            (cited("p1", level=0, provider="P", document="d"), cited("p2", provider="P", document="d")),
        ),
        entity_attribute="document",
    )
    standing = made.standing()
    assert [one.entity for one in standing.sources[0]] == ["ragmesh://c/d"] * 2
    assert [one.gain for one in standing.nuggets[0]] == [0.0, 1.0]
    assert standing.repeated() == [False, False]


def test_other_targets_hold_for_the_turns_so_far() -> None:
    made = talk(Told("q", "a", (cited("p", provider="P", group="male"),)))
    made.relevance = 0.5
    made.set_options(Options(targets=(GENDER,)))
    assert made.standing().sources[0][0].membership == {"group": (0, 1, 0)}
    assert made.relevance == 0.5  # R knows of no groups
    made.set_options(Options(targets=(GENDER,), entity_attribute="document"))
    assert made.relevance is None


def test_a_full_conversation_takes_no_turn() -> None:
    made = Conversation("id", Limits(turns=1, words=5))
    made.check_room("one two three four five")
    with pytest.raises(MeshError, match="more than 5 words"):
        made.check_room("one two three four five six")
    made.keep(Told("one", "two"))
    with pytest.raises(MeshError, match="1 turns, the most") as caught:
        made.check_room("more")
    assert caught.value.reason == "CONVERSATION_FULL"


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_conversation_is_kept_for_its_lifetime_and_had_by_one() -> None:
    clock = Clock()
    shelf = Shelf(Limits(lifetime_s=10), clock=clock)
    made = shelf.take(DEFAULT_TENANT)
    made.keep(Told("q", "a"))
    with pytest.raises(FailedPrecondition) as busy:
        shelf.take(DEFAULT_TENANT, made.id)
    assert busy.value.reason == "CONVERSATION_BUSY"
    shelf.put_back(made)
    clock.now = 9.0
    assert shelf.take(DEFAULT_TENANT, made.id) is made
    shelf.put_back(made)
    clock.now = 19.0
    with pytest.raises(NotFound) as gone:
        shelf.take(DEFAULT_TENANT, made.id)
    assert gone.value.field == "conversation_id"


def test_one_without_a_turn_is_not_kept() -> None:
    shelf = Shelf(Limits())
    made = shelf.take(DEFAULT_TENANT)
    shelf.put_back(made)
    with pytest.raises(NotFound):
        shelf.take(DEFAULT_TENANT, made.id)


def test_the_one_unused_for_the_longest_makes_room_but_none_under_way() -> None:
    shelf = Shelf(Limits(conversations=2))
    first, second = shelf.take(DEFAULT_TENANT), shelf.take(DEFAULT_TENANT)
    with pytest.raises(MeshError) as full:
        shelf.take(DEFAULT_TENANT)
    assert full.value.reason == "TOO_MANY_CONVERSATIONS"
    for one in (first, second):
        one.keep(Told("q", "a"))
        shelf.put_back(one)
    third = shelf.take(DEFAULT_TENANT)
    with pytest.raises(NotFound):
        shelf.take(DEFAULT_TENANT, first.id)
    assert shelf.take(DEFAULT_TENANT, second.id) is second
    assert third.id not in (first.id, second.id)


def test_a_conversation_is_its_tenants_alone() -> None:
    shelf = Shelf(Limits())
    made = shelf.take("acme")
    made.keep(Told("Which river?", "The Rhine."))
    for busy in (True, False):
        # Another tenant is told the same whether someone has it, or nobody, or there is none.
        with pytest.raises(NotFound) as refused:
            shelf.take("other", made.id)
        with pytest.raises(NotFound) as unknown:
            shelf.take("other", "0" * 32)
        assert str(refused.value) == str(unknown.value)
        if busy:
            shelf.put_back(made)
    assert shelf.take("acme", made.id) is made


def test_a_tenant_with_many_conversations_makes_room_for_others() -> None:
    shelf = Shelf(Limits(conversations=4))
    kept = []
    for tenant in ("small", "large", "large", "large", "other"):
        made = shelf.take(tenant)
        made.keep(Told("Which river?", "The Rhine."))
        shelf.put_back(made)
        kept.append(made)
    # The fifth came in place of the oldest of the tenant with three, not of the oldest of all.
    with pytest.raises(NotFound):
        shelf.take("large", kept[1].id)
    assert [shelf.take(one.tenant, one.id) for one in (kept[0], *kept[2:])] == [kept[0], *kept[2:]]
