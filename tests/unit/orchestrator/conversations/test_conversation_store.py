"""Conversations: what they hold, how they stand, and how long they are kept."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import FailedPrecondition, MeshError, NotFound
from evenmesh_core.group_fairness import Attribute, conversation, jsd, parse_transcripts
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_orchestrator.asks.request import Defaults
from evenmesh_orchestrator.conversations import codec
from evenmesh_orchestrator.conversations.options import Options, Target
from evenmesh_orchestrator.conversations.sources import Cited
from evenmesh_orchestrator.conversations.conversation import Conversation, Limits, TurnRecord
from evenmesh_orchestrator.conversations.memory import MemoryConversationStore

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


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_conversation_is_kept_for_its_lifetime_and_had_by_one() -> None:
    clock = Clock()
    store = ConversationStore(Limits(lifetime_s=10), clock=clock)
    made = store.acquire(DEFAULT_TENANT)
    made.add(TurnRecord("q", "a"))
    with pytest.raises(FailedPrecondition) as busy:
        store.acquire(DEFAULT_TENANT, made.id)
    assert busy.value.reason == "CONVERSATION_BUSY"
    store.release(made)
    clock.now = 9.0
    assert store.acquire(DEFAULT_TENANT, made.id) is made
    store.release(made)
    clock.now = 19.0
    with pytest.raises(NotFound) as gone:
        store.acquire(DEFAULT_TENANT, made.id)
    assert gone.value.field == "conversation_id"


def test_one_without_a_turn_is_not_kept() -> None:
    store = ConversationStore(Limits())
    made = store.acquire(DEFAULT_TENANT)
    store.release(made)
    with pytest.raises(NotFound):
        store.acquire(DEFAULT_TENANT, made.id)


def test_the_one_unused_for_the_longest_makes_room_but_none_under_way() -> None:
    store = ConversationStore(Limits(conversations=2, tenant_share=1))
    first, second = store.acquire(DEFAULT_TENANT), store.acquire(DEFAULT_TENANT)
    with pytest.raises(MeshError) as full:
        store.acquire(DEFAULT_TENANT)
    assert full.value.reason == "TOO_MANY_CONVERSATIONS"
    for one in (first, second):
        one.add(TurnRecord("q", "a"))
        store.release(one)
    third = store.acquire(DEFAULT_TENANT)
    with pytest.raises(NotFound):
        store.acquire(DEFAULT_TENANT, first.id)
    assert store.acquire(DEFAULT_TENANT, second.id) is second
    assert third.id not in (first.id, second.id)


def test_a_conversation_is_its_tenants_alone() -> None:
    store = ConversationStore(Limits())
    made = store.acquire("acme")
    made.add(TurnRecord("Which river?", "The Rhine."))
    for busy in (True, False):
        # Another tenant gets the same answer whether someone has it, or nobody, or there is none.
        with pytest.raises(NotFound) as refused:
            store.acquire("other", made.id)
        with pytest.raises(NotFound) as unknown:
            store.acquire("other", "0" * 32)
        assert str(refused.value) == str(unknown.value)
        if busy:
            store.release(made)
    assert store.acquire("acme", made.id) is made


def test_a_tenant_with_many_conversations_makes_room_for_others() -> None:
    store = ConversationStore(Limits(conversations=4, tenant_share=1))
    kept = []
    for tenant in ("small", "large", "large", "large", "other"):
        made = store.acquire(tenant)
        made.add(TurnRecord("Which river?", "The Rhine."))
        store.release(made)
        kept.append(made)
    # The fifth came in place of the oldest of the tenant with three, not of the oldest of all.
    with pytest.raises(NotFound):
        store.acquire("large", kept[1].id)
    assert [store.acquire(one.tenant, one.id) for one in (kept[0], *kept[2:])] == [kept[0], *kept[2:]]


MIB = 2**20


def _large(size: int = 6 * MIB) -> pb.AskRequest:
    """An ask with candidates of that many bytes."""
    ask = pb.AskRequest(question="Which river?")
    for at in range(size // 50_000):
        ask.candidates.passages.add(id=str(at), text="x" * 50_000)
    return ask


def _talk(store: ConversationStore, tenant: str, ask: pb.AskRequest) -> str:
    """Hold a conversation of one turn, and return its id."""
    made = store.acquire(tenant)
    try:
        _, settings = codec.read_turn(ask, made, Defaults("demo", "rankrag"))
        store.keep(made, settings, Options())
        turn = TurnRecord(ask.question, "The Rhine.")
        store.add(made, turn, made.state(turn))
    finally:
        store.release(made)
    return made.id


def _kept(store: ConversationStore, tenant: str, ids: list[str]) -> list[int]:
    """The bytes of the requests that conversations still hold, for those that are still there."""
    found = []
    for one in ids:
        try:
            made = store.acquire(tenant, one)
        except NotFound:
            continue
        found.append(len(made.settings))
        store.release(made)
    return found


def test_twenty_ended_conversations_with_large_requests_keep_what_their_tenant_may() -> None:
    store = ConversationStore(Limits())
    ids = [_talk(store, "acme", _large()) for _ in range(20)]
    kept = _kept(store, "acme", ids)
    assert sum(kept) <= 48 * MIB
    assert len(kept) == 8  # the newest
    assert sum(kept) < store.num_bytes <= 48 * MIB


def test_a_tenant_with_large_conversations_takes_no_room_from_others() -> None:
    store = ConversationStore(Limits())
    small = _talk(store, "small", pb.AskRequest(question="Which river?", collection="rivers"))
    for _ in range(20):
        _talk(store, "large", _large())
    another = _talk(store, "other", _large())
    assert store.acquire("small", small).tenant == "small"
    assert store.acquire("other", another).tenant == "other"


def test_what_does_not_fit_is_refused_with_what_to_do_and_counts_nothing() -> None:
    store = ConversationStore(Limits(bytes=8 * MIB))
    with pytest.raises(MeshError, match="use a collection") as refused:
        _talk(store, "acme", _large(7 * MIB))
    assert refused.value.reason == "CONVERSATIONS_TOO_LARGE"
    assert refused.value.retry_after_s is None  # it never fits
    assert store.num_bytes == 0
    in_use = store.acquire("acme")
    store.keep(in_use, b"x" * 4 * MIB, Options())
    with pytest.raises(MeshError) as later:
        _talk(store, "acme", _large(4 * MIB))
    assert later.value.retry_after_s
    store.release(in_use)
    assert store.num_bytes == 0


def test_groups_of_options_count_and_are_given_back() -> None:
    store = ConversationStore(Limits())
    made = store.acquire("acme")
    many = Options(targets=(Target("a", tuple(f"group {at}" for at in range(900)), (1 / 900,) * 900, 3),))
    store.keep(made, b"", many)
    assert store.num_bytes > 900 * 50
    store.keep(made, b"", Options())
    assert store.num_bytes == 0


def test_waiting_turns_count() -> None:
    store = ConversationStore(Limits(bytes=8 * MIB))
    store.hold("acme", 5 * MIB)
    with pytest.raises(MeshError) as refused:
        store.hold("acme", 2 * MIB)
    assert refused.value.reason == "CONVERSATIONS_TOO_LARGE"
    store.hold("acme", -5 * MIB)
    store.hold("acme", 2 * MIB)


def test_sources_times_groups_are_bounded() -> None:
    groups = tuple(f"g{at}" for at in range(1000))
    made = Conversation("id", Limits(), options=Options(targets=(Target("a", groups, (1e-3,) * 1000, 3),)))
    made.check_room("Which?", 20)
    with pytest.raises(MeshError, match="fewer passages") as full:
        made.check_room("Which?", 21)
    assert full.value.reason == "CONVERSATION_FULL"
