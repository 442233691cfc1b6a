"""The contract of what stores conversations, run against memory and every database there is here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import URL, func, make_url, select, text, update
from sqlalchemy.ext.asyncio import create_async_engine

from evenmesh.evaluator.v1.evaluator_service_pb2 import EvaluateConversationRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import FailedPrecondition, MeshError, NotFound, Unavailable
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_orchestrator.asks.request import Defaults
from evenmesh_orchestrator.conversations import codec
from evenmesh_orchestrator.conversations.conversation import Conversation, Limits, TurnRecord
from evenmesh_orchestrator.conversations.memory import MemoryConversationStore
from evenmesh_orchestrator.conversations.options import Options, Target
from evenmesh_orchestrator.conversations.sources import Cited
from evenmesh_orchestrator.conversations.sql import database
from evenmesh_orchestrator.conversations.sql.store import SqlConversationStore
from evenmesh_orchestrator.conversations.sql.tables import CONVERSATIONS, HOLDERS, TENANTS, TURNS
from evenmesh_orchestrator.conversations.store import ConversationLost, ConversationStore
from tests.support.postgres import Postgres, empty_database

MIB = 2**20
LEASE_S = 30.0
LIMITS = Limits()
TURN = TurnRecord("Which river?", "The Rhine.")


class Clock:
    """A clock that tests move. Seconds."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def us(self) -> int:
        """The time, for databases."""
        return int(self.now * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Make]:
    """Make two orchestrators' stores of the same conversations; in memory both are one."""
    if request.param == "memory":

        async def both(limits: Limits = LIMITS) -> Any:
            store = MemoryConversationStore(limits, clock=clock)
            return store, store

        yield both
        return
    url = empty_database(request, request.param, tmp_path)
    made: list[SqlConversationStore] = []

    async def two(limits: Limits = LIMITS) -> Any:
        for _ in range(2):
            made.append(SqlConversationStore(url, limits, lease_s=LEASE_S, clock=clock.us))
            await made[-1].start()
        return made[-2:]

    yield two
    for store in made:
        await store.stop()


@asynccontextmanager
async def opened(
    url: URL, clock: Clock | None, limits: Limits = LIMITS
) -> AsyncIterator[SqlConversationStore]:
    """One store over a database."""
    store = SqlConversationStore(url, limits, lease_s=LEASE_S, clock=None if clock is None else clock.us)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def add(
    store: ConversationStore, made: Conversation, turn: TurnRecord = TURN, relevance: float | None = 0.25
) -> None:
    await store.add(made, turn, made.state(turn), relevance)


async def hold(store: ConversationStore, tenant: str = DEFAULT_TENANT, turn: TurnRecord = TURN) -> str:
    """Hold a conversation of one turn; return its id."""
    made = await store.acquire(tenant)
    await store.keep(made, b"", made.options)
    await add(store, made, turn)
    await store.release(made)
    return made.id


async def there(store: ConversationStore, tenant: str, ids: list[str]) -> list[bool]:
    """Whether each conversation is still there."""
    found = []
    for one in ids:
        try:
            made = await store.acquire(tenant, one)
        except NotFound:
            found.append(False)
        else:
            found.append(True)
            await store.release(made)
    return found


async def test_all_of_a_conversation_is_there_when_it_goes_on_elsewhere(make: Make) -> None:
    store, other = await make()
    measure = EvaluateConversationRequest(method=2, irrelevant_turns=2, patience=7, alpha=0.1)
    options = Options(
        history=pb.ConversationOptions.HISTORY_NONE,
        history_turns=3,
        template="rankrag-answer-conversation",
        targets=(
            Target("group", ("a", "b;c", "ü"), (0.1, 0.2, 0.7), 3),
            Target("p", ("x", "y", "z"), (1 / 3,) * 3, 2),
        ),
        entity_attribute="document",
        measure=measure,
    )
    turns = [
        TurnRecord("# Wie weit?\n\x00", 'bis "½"', (Cited("p/1", "T", "c", {"p": "x", "ü": "\x00"}, 2),)),
        TurnRecord("", ""),
        TurnRecord("🚲" * 40_000, "A.", (Cited("2", "", "mesh", {}, 0), Cited("3", "", "mesh", {}, 2))),
    ]
    made = await store.acquire("acme")
    settings = pb.AskRequest(collection="rivers", k=3).SerializeToString()
    for at, turn in enumerate(turns):
        await store.keep(made, settings, options)
        made.run_id = "run"
        await add(store, made, turn, None if at == 1 else at / 3)
    transcript, words = made.state(), made.num_words
    await store.release(made)
    found = await other.acquire("acme", made.id)
    assert found.turns == turns
    assert (found.settings, found.options, found.run_id) == (settings, options, "run")
    assert (found.relevance, found.num_words, found.next_turn) == (2 / 3, words, 4)
    assert found.state() == transcript
    await add(other, found)
    await other.release(found)
    again = await store.acquire("acme", made.id)
    assert [*again.turns] == [*turns, TURN]
    await store.release(again)


async def test_a_conversation_is_kept_for_its_lifetime_and_had_by_one(make: Make, clock: Clock) -> None:
    store, other = await make(Limits(lifetime_s=20))
    made = await store.acquire(DEFAULT_TENANT)
    await add(store, made)
    for one in (store, other):
        with pytest.raises(FailedPrecondition) as busy:
            await one.acquire(DEFAULT_TENANT, made.id)
        assert busy.value.reason == "CONVERSATION_BUSY"
    await store.release(made)
    clock.now += 19
    again = await other.acquire(DEFAULT_TENANT, made.id)
    assert again.turns == [TURN]
    await other.release(again)
    clock.now += 20
    with pytest.raises(NotFound) as gone:
        await store.acquire(DEFAULT_TENANT, made.id)
    assert gone.value.field == "conversation_id"


async def test_one_without_a_turn_is_not_kept(make: Make) -> None:
    store, other = await make()
    made = await store.acquire(DEFAULT_TENANT)
    await store.keep(made, b"settings", Options())
    await store.release(made)
    assert await there(store, DEFAULT_TENANT, [made.id]) == [False]
    assert await there(other, DEFAULT_TENANT, [made.id]) == [False]
    assert store.num_bytes == 0


async def test_an_id_that_nobody_gave_is_not_found(make: Make) -> None:
    store, _ = await make()
    for name in ("x", "0" * 32, "\x00", "F" * 32, "a\nb", "ü" * 64):
        with pytest.raises(NotFound):
            await store.acquire(DEFAULT_TENANT, name)


async def test_the_one_unused_for_the_longest_makes_room_but_none_under_way(make: Make, clock: Clock) -> None:
    store, other = await make(Limits(conversations=2, tenant_share=1))
    first, second = await store.acquire(DEFAULT_TENANT), await other.acquire(DEFAULT_TENANT)
    for one in (store, other):
        with pytest.raises(MeshError) as full:
            await one.acquire(DEFAULT_TENANT)
        assert full.value.reason == "TOO_MANY_CONVERSATIONS"
        assert full.value.retry_after_s
    for one, made in ((store, first), (other, second)):
        await add(one, made)
        clock.now += 1
        await one.release(made)
    third = await store.acquire(DEFAULT_TENANT)
    assert await there(other, DEFAULT_TENANT, [first.id, second.id]) == [False, True]
    assert third.id not in (first.id, second.id)


async def test_a_conversation_is_its_tenants_alone(make: Make) -> None:
    store, other = await make()
    made = await store.acquire("acme")
    await add(store, made)
    for busy in (True, False):
        # Another tenant gets the same answer whether someone has it, or nobody, or there is none.
        with pytest.raises(NotFound) as refused:
            await other.acquire("other", made.id)
        with pytest.raises(NotFound) as unknown:
            await other.acquire("other", "0" * 32)
        assert str(refused.value) == str(unknown.value)
        if busy:
            await store.release(made)
    assert (await other.acquire("acme", made.id)).turns == [TURN]


async def test_a_tenant_with_many_conversations_makes_room_for_others(make: Make, clock: Clock) -> None:
    store, other = await make(Limits(conversations=4, tenant_share=1))
    kept = []
    for at, tenant in enumerate(("small", "large", "large", "large", "other")):
        kept.append((tenant, await hold((store, other)[at % 2], tenant)))
        clock.now += 1
    # The fifth came in place of the oldest of the tenant with three, not of the oldest of all.
    found = [await there(store, tenant, [one]) for tenant, one in kept]
    assert found == [[True], [False], [True], [True], [True]]


def _large(size: int = 6 * MIB) -> pb.AskRequest:
    """An ask with candidates of that many bytes."""
    ask = pb.AskRequest(question="Which river?")
    for at in range(size // 50_000):
        ask.candidates.passages.add(id=str(at), text="x" * 50_000)
    return ask


async def _talk(store: ConversationStore, tenant: str, ask: pb.AskRequest) -> str:
    """Hold a conversation of one turn, and return its id."""
    made = await store.acquire(tenant)
    try:
        _, settings = codec.read_turn(ask, made, Defaults("demo", "rankrag"))
        await store.keep(made, settings, Options())
        await add(store, made)
    finally:
        await store.release(made)
    return made.id


async def test_ended_conversations_with_large_requests_keep_what_their_tenant_may(
    make: Make, clock: Clock
) -> None:
    store, other = await make(Limits(bytes=2 * MIB))
    ids = []
    for at in range(8):
        ids.append(await _talk((store, other)[at % 2], "acme", _large(MIB // 4)))
        clock.now += 1
    sizes = []
    for one, is_there in zip(ids, await there(store, "acme", ids), strict=True):
        if is_there:
            made = await store.acquire("acme", one)
            sizes.append(len(made.settings))
            await store.release(made)
    assert await there(other, "acme", ids) == [False] * 2 + [True] * 6  # the newest
    assert sum(sizes) <= 1.5 * MIB


async def test_a_tenant_with_large_conversations_takes_no_room_from_others(make: Make, clock: Clock) -> None:
    store, other = await make(Limits(bytes=2 * MIB))
    small = await _talk(store, "small", pb.AskRequest(question="Which river?", collection="rivers"))
    for at in range(10):
        await _talk((store, other)[at % 2], "large", _large(MIB // 4))
        clock.now += 1
    another = await _talk(other, "other", _large(MIB // 4))
    assert await there(store, "small", [small]) == [True]
    assert await there(store, "other", [another]) == [True]


async def test_what_does_not_fit_is_refused_with_what_to_do_and_counts_nothing(make: Make) -> None:
    store, other = await make(Limits(bytes=2 * MIB))
    with pytest.raises(MeshError, match="use a collection") as refused:
        await _talk(store, "acme", _large(7 * MIB // 4))
    assert refused.value.reason == "CONVERSATIONS_TOO_LARGE"
    assert refused.value.retry_after_s is None  # it never fits
    assert store.num_bytes == 0
    in_use = await store.acquire("acme")
    await store.keep(in_use, b"x" * MIB, Options())
    await add(store, in_use)
    with pytest.raises(MeshError) as later:
        await _talk(other, "acme", _large(MIB))
    assert later.value.reason == "CONVERSATIONS_TOO_LARGE"
    assert later.value.retry_after_s
    await store.release(in_use)
    await _talk(other, "acme", _large(MIB))  # in its place
    assert await there(store, "acme", [in_use.id]) == [False]


async def test_a_turn_that_does_not_fit_changes_nothing(make: Make) -> None:
    store, other = await make(Limits(bytes=MIB))
    made = await store.acquire("acme")
    await add(store, made)
    with pytest.raises(MeshError) as refused:
        await add(store, made, TurnRecord("?", "x" * MIB))
    assert refused.value.reason == "CONVERSATIONS_TOO_LARGE"
    await add(store, made, TurnRecord("And?", "x"))
    await store.release(made)
    found = await other.acquire("acme", made.id)
    assert [turn.question for turn in found.turns] == ["Which river?", "And?"]


async def test_groups_of_options_count_and_are_given_back(make: Make) -> None:
    store, _ = await make()
    made = await store.acquire("acme")
    many = Options(targets=(Target("a", tuple(f"group {at}" for at in range(900)), (1 / 900,) * 900, 3),))
    await store.keep(made, b"", many)
    assert store.num_bytes > 900 * 50
    await store.keep(made, b"", Options())
    assert store.num_bytes == 0


async def test_waiting_turns_count(make: Make) -> None:
    store, _ = await make(Limits(bytes=8 * MIB))
    store.hold("acme", 5 * MIB)
    with pytest.raises(MeshError) as refused:
        store.hold("acme", 2 * MIB)
    assert refused.value.reason == "CONVERSATIONS_TOO_LARGE"
    store.hold("acme", -5 * MIB)
    store.hold("acme", 2 * MIB)


async def test_settings_of_conversations_in_use_take_no_more_memory_than_allowed(make: Make) -> None:
    store, _ = await make(Limits(bytes=8 * MIB))
    for _ in range(2):
        await store.keep(await store.acquire("acme"), b"x" * 2 * MIB, Options())
    with pytest.raises(MeshError) as refused:
        await store.keep(await store.acquire("acme"), b"x" * 2 * MIB, Options())
    assert refused.value.reason == "CONVERSATIONS_TOO_LARGE"
    await store.keep(await store.acquire("other"), b"x" * MIB, Options())


async def test_of_many_that_want_it_at_once_one_gets_it(make: Make) -> None:
    store, other = await make()
    name = await hold(store)
    found = await asyncio.gather(
        *((store, other)[at % 2].acquire(DEFAULT_TENANT, name) for at in range(12)), return_exceptions=True
    )
    assert sum(isinstance(one, Conversation) for one in found) == 1
    assert all(one.reason == "CONVERSATION_BUSY" for one in found if isinstance(one, FailedPrecondition))
    assert sum(isinstance(one, FailedPrecondition) for one in found) == 11


# Databases.


async def rows(url: URL, query: Any) -> list[tuple[Any, ...]]:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        done = await connection.execute(query)
        found = [tuple(row) for row in done] if done.returns_rows else []
    await engine.dispose()
    return found


async def counted(url: URL) -> None:
    """What tenants hold is what their conversations are, and every turn is of a conversation."""
    by_tenant = select(CONVERSATIONS.c.tenant, func.count(), func.sum(CONVERSATIONS.c.num_bytes))
    assert sorted(await rows(url, by_tenant.group_by(CONVERSATIONS.c.tenant))) == sorted(
        await rows(url, select(TENANTS))
    )
    turns = select(TURNS.c.tenant, TURNS.c.id, func.max(TURNS.c.number), func.count())
    wanted = await rows(
        url,
        select(
            CONVERSATIONS.c.tenant, CONVERSATIONS.c.id, CONVERSATIONS.c.num_turns, CONVERSATIONS.c.num_turns
        ).where(CONVERSATIONS.c.num_turns > 0),
    )
    assert sorted(await rows(url, turns.group_by(TURNS.c.tenant, TURNS.c.id))) == sorted(wanted)


async def test_memory_and_databases_say_the_same_to_any_sequence_of_turns(url: URL, clock: Clock) -> None:
    chance = random.Random(7)
    limits = Limits(lifetime_s=40, conversations=7, bytes=600_000, tenant_share=0.6)
    memory = MemoryConversationStore(limits, clock=clock)
    async with opened(url, clock, limits) as one, opened(url, clock, limits) as two:
        ids: list[tuple[str, str, str]] = []
        said: set[str] = set()
        for _ in range(70):
            clock.now += chance.choice([0.5, 1, 5])
            tenant, name, other = chance.choice(ids) if ids and chance.random() < 0.5 else ("", "", "")
            tenant = tenant or chance.choice("abc")
            settings = b"x" * chance.choice([0, 10_000, 100_000, 300_000])
            turn = TurnRecord("q", "a" * chance.choice([10, 1_000, 50_000]))
            ends = []
            for store, known in ((memory, name), (chance.choice([one, two]), other)):
                made = None
                try:
                    made = await store.acquire(tenant, known)
                    if not name:
                        await store.keep(made, settings, made.options)
                    await add(store, made, turn)
                    ends.append((made.id, str(made.next_turn)))
                except MeshError as error:
                    ends.append(("", error.reason))
                finally:
                    if made is not None:
                        await store.release(made)
            assert ends[0][1] == ends[1][1]
            said.add(ends[0][1])
            if ends[0][0] and not name:
                ids.append((tenant, ends[0][0], ends[1][0]))
        assert {"NOT_FOUND", "CONVERSATIONS_TOO_LARGE", "2", "3"} <= said
        await counted(url)


async def test_what_is_over_is_removed_by_whoever_comes_next(url: URL, clock: Clock) -> None:
    async with opened(url, clock, Limits(lifetime_s=50)) as gone:
        await hold(gone, "acme")
        in_use = await gone.acquire("acme")
        await add(gone, in_use)
        empty = await gone.acquire("acme")
        clock.now += 1_000
        async with opened(url, clock) as store:  # the first one lived no longer, as its lease was over
            assert await rows(url, select(CONVERSATIONS)) == []
            assert await rows(url, select(TURNS)) == []
            assert await rows(url, select(TENANTS)) == []
            assert len(await rows(url, select(HOLDERS))) == 1
            await hold(store)
        await gone.release(in_use)
        await gone.release(empty)
        await counted(url)


async def test_after_a_kill_another_goes_on_from_the_last_stored_turn(url: URL, clock: Clock) -> None:
    killed = SqlConversationStore(url, Limits(), lease_s=LEASE_S, clock=clock.us)
    await killed.start()
    made = await killed.acquire("acme")
    await killed.keep(made, b"first", Options())
    await add(killed, made)
    await killed.keep(made, b"second", Options(history_turns=5))  # and in this turn it dies
    async with opened(url, clock) as store:
        clock.now += LEASE_S - 1
        with pytest.raises(FailedPrecondition) as busy:
            await store.acquire("acme", made.id)
        assert busy.value.reason == "CONVERSATION_BUSY"
        clock.now += 1
        found = await store.acquire("acme", made.id)
        assert (found.turns, found.settings, found.options) == ([TURN], b"first", Options())
        await add(store, found, TurnRecord("And?", "Yes."))

        # It was not dead, but out of touch: it gets an error, and changes nothing.
        for failing in (
            killed.keep(made, b"", Options()),
            add(killed, made, TurnRecord("No?", "No.")),
        ):
            with pytest.raises(ConversationLost) as lost:
                await failing
            assert lost.value.reason == "CONVERSATION_LOST"
        await killed.release(made)
        await add(store, found, TurnRecord("More?", "Yes."))
        await store.release(found)
        again = await store.acquire("acme", made.id)
        assert [turn.question for turn in again.turns] == ["Which river?", "And?", "More?"]
        await store.release(again)
    await killed.stop()
    await counted(url)


async def test_an_orchestrator_that_lives_keeps_what_its_streams_have(url: URL, clock: Clock) -> None:
    async with opened(url, clock) as store, opened(url, clock) as other:
        made = await store.acquire("acme")
        await add(store, made)
        for _ in range(3):
            clock.now += LEASE_S - 1
            await store._keep_up()
        with pytest.raises(FailedPrecondition):
            await other.acquire("acme", made.id)
        await store.keep(made, b"", Options())


async def test_a_clock_that_goes_backwards_keeps_no_conversation_of_a_dead_orchestrator(
    url: URL, clock: Clock
) -> None:
    killed = SqlConversationStore(url, Limits(), lease_s=LEASE_S, clock=clock.us)
    await killed.start()
    made = await killed.acquire("acme")
    await add(killed, made)
    async with opened(url, clock) as store, opened(url, clock) as other:
        mine = await store.acquire("acme")
        await add(store, mine)
        clock.now -= 86_400
        await store._keep_up()
        with pytest.raises(FailedPrecondition):
            await other.acquire("acme", mine.id)
        assert (await other.acquire("acme", made.id)).turns == [TURN]
    await killed.stop()


async def test_an_orchestrator_says_again_and_again_that_it_lives(url: URL) -> None:
    store = SqlConversationStore(url, LIMITS, lease_s=0.3)
    await store.start()
    try:
        ((first,),) = await rows(url, select(HOLDERS.c.until_us))
        async with asyncio.timeout(60):
            while (await rows(url, select(HOLDERS.c.until_us))) in ([(first,)], []):
                await asyncio.sleep(0.05)
    finally:
        await store.stop()
    assert await rows(url, select(HOLDERS)) == []


async def test_one_that_was_out_of_touch_goes_on_where_nobody_else_did(url: URL, clock: Clock) -> None:
    async with opened(url, clock) as store, opened(url, clock) as other:
        made = await store.acquire("acme")
        await add(store, made)
        empty = await store.acquire("acme")
        clock.now += 100
        await add(store, made)
        await add(store, empty)
        with pytest.raises(FailedPrecondition):
            await other.acquire("acme", made.id)
        await store.release(made)
        assert len((await other.acquire("acme", made.id)).turns) == 2


async def test_one_that_ends_leaves_its_conversations_to_others_at_once(url: URL, clock: Clock) -> None:
    async with opened(url, clock) as other:
        async with opened(url, clock) as store:
            made = await store.acquire("acme")
            await add(store, made)
        assert (await other.acquire("acme", made.id)).turns == [TURN]


async def test_the_clock_of_the_database_counts(url: URL) -> None:
    async with opened(url, None) as store, opened(url, None) as other:
        name = await hold(store)
        found = await other.acquire(DEFAULT_TENANT, name)
        with pytest.raises(FailedPrecondition):
            await store.acquire(DEFAULT_TENANT, name)
        await other.release(found)
        past = update(CONVERSATIONS).values(expires_at_us=CONVERSATIONS.c.expires_at_us - 3_600_000_000)
        await rows(url, past)
        assert await there(store, DEFAULT_TENANT, [name]) == [False]


async def test_a_turn_whose_end_is_unknown_is_reported_and_found(
    url: URL, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url, clock) as store:
        made = await store.acquire("acme")
        await store.keep(made, b"settings", Options())
        write = store._database.write

        @asynccontextmanager
        async def severed() -> AsyncIterator[Any]:
            async with write() as found:
                yield found
            raise Unavailable("STORE_UNAVAILABLE", "the connection broke")

        with monkeypatch.context() as broken:
            broken.setattr(store._database, "write", severed)
            with pytest.raises(MeshError, match="not stored") as raised:
                await add(store, made)
        assert (raised.value.code, raised.value.reason) == (grpc.StatusCode.UNAVAILABLE, "TURN_NOT_STORED")
        assert made.next_turn == 1
        await store.keep(made, b"settings", Options())
        assert made.turns == [TURN]
        await add(store, made, TurnRecord("And?", "Yes."))
        await store.release(made)
        assert store.num_bytes == 0
    await counted(url)


async def test_what_could_not_be_given_up_is_given_up_later(
    url: URL, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def away() -> AsyncIterator[Any]:
        raise Unavailable("STORE_UNAVAILABLE", "no connection")
        yield

    async with opened(url, clock) as store, opened(url, clock) as other:
        kept, empty = await store.acquire("acme"), await store.acquire("acme")
        await add(store, kept)
        with monkeypatch.context() as broken:
            broken.setattr(store._database, "write", away)
            with pytest.raises(Unavailable) as raised:
                await store.acquire("acme")
            assert raised.value.reason == "STORE_UNAVAILABLE"
            await store.release(kept)
            await store.release(empty)
        with pytest.raises(FailedPrecondition):
            await other.acquire("acme", kept.id)
        mine = await store.acquire("acme", kept.id)  # it knows that no stream of its has it
        await store.release(mine)
        assert (await other.acquire("acme", kept.id)).turns == [TURN]
        assert await rows(url, select(CONVERSATIONS.c.id)) == [(kept.id,)]


async def test_one_whose_caller_went_while_it_was_acquired_is_given_up(
    url: URL, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url, clock) as store, opened(url, clock) as other:
        name = await hold(store)
        loading = asyncio.Event()

        async def load(*_: Any) -> None:
            loading.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as slow:
            slow.setattr(store, "_load", load)
            going = asyncio.create_task(store.acquire(DEFAULT_TENANT, name))
            await loading.wait()
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
        await store._keep_up()
        assert (await other.acquire(DEFAULT_TENANT, name)).turns == [TURN]


async def test_a_conversation_of_a_later_version_is_refused_and_left_alone(url: URL, clock: Clock) -> None:
    async with opened(url, clock) as store:
        name = await hold(store)
        await rows(url, update(CONVERSATIONS).values(format=99))
        with pytest.raises(Unavailable, match="later version") as refused:
            await store.acquire(DEFAULT_TENANT, name)
        assert refused.value.reason == "STORE_VERSION"
        await rows(url, update(CONVERSATIONS).values(format=1))
        assert await there(store, DEFAULT_TENANT, [name]) == [True]


async def test_a_server_that_takes_too_long_is_away(
    postgres: Postgres, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.empty()
    url = make_url(postgres.url)
    async with opened(url, clock) as store:
        monkeypatch.setattr(database, "_WAIT_S", 0.5)
        engine = create_async_engine(url)
        async with engine.connect() as connection:
            key = store._database._database._lock_key
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({key})"))
            with pytest.raises(Unavailable, match="did not answer") as raised:
                await store.acquire("acme")
            assert raised.value.reason == "STORE_UNAVAILABLE"
        await engine.dispose()
        monkeypatch.setattr(database, "_WAIT_S", 30.0)
        await hold(store)
        await counted(url)


async def test_a_file_is_its_owners_alone(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "deep" / "store.db"
    async with opened(URL.create("sqlite+aiosqlite", database=str(file)), clock) as store:
        await hold(store)
        assert {one.name: one.stat().st_mode & 0o777 for one in file.parent.iterdir()} == {
            f"{file.name}{part}": 0o600 for part in ("", "-wal", "-shm")
        }


async def test_a_file_that_was_made_read_only_gets_no_rights_back(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "store.db"
    url = URL.create("sqlite+aiosqlite", database=str(file))
    async with opened(url, clock):
        pass
    file.chmod(0o440)
    with suppress(Unavailable):  # root may write it
        async with opened(url, clock):
            pass
    assert file.stat().st_mode & 0o777 == 0o400


async def test_a_file_that_cannot_be_written_stops_the_start_and_a_server_that_is_away_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = SqlConversationStore(
        URL.create("sqlite+aiosqlite", database=str(tmp_path / "file" / "x.db")), Limits()
    )
    with pytest.raises(Unavailable):
        await store.start()
    nobody = make_url("postgresql+asyncpg://evenmesh@127.0.0.1:1/postgres")
    store = SqlConversationStore(nobody, Limits())
    await store.start()
    assert "the database of conversations is away" in caplog.text
    with pytest.raises(Unavailable) as raised:
        await store.acquire("acme")
    assert raised.value.reason == "STORE_UNAVAILABLE"
    await store.stop()
