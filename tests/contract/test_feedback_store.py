"""The contract of what keeps feedback, run against every database there is here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from evenmesh.wire.errors import Unavailable
from evenmesh_reranker.backends.sql.agents import SqlAgentRegistry
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import DAY_US, SqlFeedbackStore
from evenmesh_reranker.backends.sql.leases import SqlLeases
from evenmesh_reranker.backends.sql.served import SqlServedStore
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.feedback.domain import (
    Feedback,
    Flag,
    Limits,
    Outcome,
    RecordStatus,
    ServedRanking,
    passage_keys,
    served_key,
)
from evenmesh_reranker.feedback.quality import QualityRules
from evenmesh_reranker.feedback.served import ServedRankings
from evenmesh_reranker.feedback.training import SILENT_US, State, TrainingReport

NOON_US = 20_000 * DAY_US + DAY_US // 2
ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")
ALL = AllAgents()
STORED, DUPLICATE, CONFLICT = (
    Outcome(RecordStatus.STORED),
    Outcome(RecordStatus.DUPLICATE),
    Outcome(RecordStatus.CONFLICT),
)


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(url: URL) -> AsyncIterator[Database]:
    database = Database(url)
    await database.open()
    yield database
    await database.close()


Make = Callable[..., SqlFeedbackStore]


@pytest.fixture
def make(database: Database, clock: Clock) -> Make:
    """Makes stores over the one database."""

    def make(**options: Any) -> SqlFeedbackStore:
        return SqlFeedbackStore(database, clock=clock, **options)

    return make


@pytest.fixture
def store(make: Make) -> SqlFeedbackStore:
    return make()


def item(id_: str, usefulness: float = 1.0, *, agent: Agent = ANN, **fields: Any) -> Feedback:
    given: dict[str, Any] = {"query": f"query of {id_}", "passage_id": "p", **fields}
    return Feedback(id=id_, usefulness=usefulness, agent=agent, **given)


async def _ids(store: SqlFeedbackStore, scope: Scope = ALL, **options: Any) -> list[str]:
    return [one.feedback.id for one in await store.page(scope, **options)]


async def test_all_of_an_item_is_kept(store: SqlFeedbackStore, clock: Clock) -> None:
    one = Feedback("1", "Wie weit?\n½", "p/1", ANN, 0.25, "v7", "bikes", ("p/0", "p/1", 'ü"'))
    assert await store.record([one]) == [STORED]
    (stored,) = await store.page(ALL)
    assert (stored.feedback, stored.flag, stored.recorded_at_us) == (one, Flag.NONE, clock.now_us)


async def test_an_id_is_stored_once_and_never_changed(store: SqlFeedbackStore) -> None:
    first, second = item("1"), item("2", 0.5)
    assert await store.record([first, second, first]) == [STORED, STORED, DUPLICATE]
    others = [
        replace(first, usefulness=0.5),
        replace(first, query="another"),
        replace(first, passage_id="another"),
        replace(first, collection="another"),
        replace(first, model_version="another"),
        replace(first, ranking=("p", "q")),
    ]
    assert await store.record([*others, item("3"), item("3", 0.5)]) == [CONFLICT] * 6 + [STORED, CONFLICT]
    assert await store.record([second]) == [DUPLICATE]
    assert [one.feedback for one in await store.page(ALL)] == [first, second, item("3")]
    assert await store.find([first, others[0], item("9"), item("1", agent=BOB)]) == [
        DUPLICATE,
        CONFLICT,
        None,
        None,
    ]


async def test_the_same_id_of_another_agent_is_another_item(store: SqlFeedbackStore) -> None:
    assert await store.record([item("1"), item("1", 0.0, agent=BOB)]) == [STORED, STORED]
    assert [one.feedback.agent for one in await store.page(ALL)] == [ANN, BOB]
    assert await _ids(store, BOB) == ["1"]
    assert await _ids(store, Agent("no", "body")) == []


async def test_writers_at_the_same_time_store_each_item_once(
    url: URL, store: SqlFeedbackStore, clock: Clock
) -> None:
    # Two processes on one database, eight writers, all with the same items in different orders.
    second = Database(url, lock_timeout_s=30)
    await second.open()
    other = SqlFeedbackStore(second, clock=clock)

    async def write(writer: int) -> int:
        target = store if writer % 2 else other
        fates = []
        for start in range(0, 40, 5):
            ids = [(7 * writer + start + step) % 40 for step in range(5)]
            fates += [one.status for one in await target.record([item(str(at)) for at in ids])]
        return fates.count(RecordStatus.STORED)

    try:
        assert sum(await asyncio.gather(*map(write, range(8)))) == 40
        assert sorted(map(int, await _ids(other))) == list(range(40))
    finally:
        await second.close()


async def test_pages_go_on_where_the_last_ended(store: SqlFeedbackStore, clock: Clock) -> None:
    for at in range(5):
        clock.now_us = NOON_US + at
        await store.record([item(str(at), agent=ANN if at % 2 else BOB)])
    first = await store.page(ALL, limit=2)
    assert [one.feedback.id for one in first] == ["0", "1"]
    assert await _ids(store, after=first[-1].sequence, limit=10) == ["2", "3", "4"]
    assert await _ids(store, since_us=NOON_US + 3) == ["3", "4"]
    assert await _ids(store, ANN) == ["1", "3"]


async def test_pages_end_after_4_mib_of_rankings(store: SqlFeedbackStore) -> None:
    """A thousand of the largest rankings are 250 MB, and a message of 16 MiB never could be sent."""
    ranking = tuple(f"{place:0250d}" for place in range(1000))
    await store.record([item(str(at), query="q", passage_id=ranking[0], ranking=ranking) for at in range(20)])
    pages = []
    while page := await store.page(ALL, after=pages[-1][-1].sequence if pages else 0):
        pages.append(page)
    # A ranking is stored as 254,000 bytes: '["', 1,000 ids of 250 digits, 999 '", "' and '"]'; 17 reach 4 MiB.
    assert [len(page) for page in pages] == [17, 3]
    assert [one.feedback.id for page in pages for one in page] == list(map(str, range(20)))


async def test_a_batch_is_stored_whole_or_not_at_all(store: SqlFeedbackStore) -> None:
    impossible: Any = None  # no database takes a feedback without usefulness
    with pytest.raises((Unavailable, TypeError)):
        await store.record([item("1"), replace(item("2"), usefulness=impossible)])
    assert await store.page(ALL) == []
    assert await store.record([item("1")]) == [STORED]


async def test_a_quota_of_a_day_and_a_quota_in_all(make: Make, clock: Clock) -> None:
    store = make(limits=Limits(per_day=3, total=5))
    batch = [item(str(at)) for at in range(4)] + [item("b", agent=BOB)]
    fates = [one.status for one in await store.record(batch)]
    assert fates == [RecordStatus.STORED] * 3 + [RecordStatus.OVER_DAY, RecordStatus.STORED]
    # What is stored is still reported as such, and takes no room.
    assert [one.status for one in await store.record([item("0"), item("9")])] == [
        RecordStatus.DUPLICATE,
        RecordStatus.OVER_DAY,
    ]
    clock.now_us += DAY_US // 2  # midnight
    fates = [one.status for one in await store.record([item(str(at)) for at in range(4, 8)])]
    assert fates == [RecordStatus.STORED] * 2 + [RecordStatus.OVER_TOTAL] * 2
    assert len(await store.page(ALL)) == 6


async def test_a_tenant_has_bytes_of_its_own_and_deleting_frees_them(make: Make, clock: Clock) -> None:
    loud, quiet = Agent("qa", "ann", "loud"), Agent("qa", "ann", "quiet")
    long = [item(str(at), query="q" * 1000, agent=loud) for at in range(5)]
    store = make(limits=Limits(tenant_bytes=4 * long[0].size))
    fates = [one.status for one in await store.record([*long, item("x", agent=quiet)])]
    assert fates == [RecordStatus.STORED] * 4 + [RecordStatus.OVER_BYTES, RecordStatus.STORED]
    assert [one.status for one in await store.record([long[0]])] == [RecordStatus.DUPLICATE]
    # As many fit again as are deleted, and another tenant's deletions free nothing.
    clock.now_us += 1
    assert await store.delete_before(clock.now_us, limit=2) == 2
    again = [item(f"again {at}", query="q" * 994, agent=loud) for at in range(3)]
    fates = [one.status for one in await store.record(again)]
    assert fates == [RecordStatus.STORED] * 2 + [RecordStatus.OVER_BYTES]


async def test_numbers_count_the_items_of_a_tenant(make: Make, clock: Clock) -> None:
    store = make()
    ours, theirs = Agent("qa", "ann", "ours"), Agent("qa", "ann", "theirs")
    await store.record([item("1", agent=ours)])
    await store.record([item(str(at), agent=theirs) for at in range(50)])
    await store.record([item("2", agent=ours), item("t", agent=theirs), item("3", agent=ours)])
    page = await store.page(AllAgents("ours"))
    assert [one.number for one in page] == [1, 2, 3]  # and nothing of what others stored in between
    assert [one.number for one in await store.page(AllAgents("theirs"))] == list(range(1, 52))
    # A number that was given is not given again.
    clock.now_us += 1
    await store.delete_before(clock.now_us, limit=1000)
    await store.record([item("4", agent=ours)])
    assert [one.number for one in await store.page(AllAgents("ours"))] == [4]


async def test_no_more_agents_than_there_may_be(make: Make) -> None:
    store = make(limits=Limits(agents=2))
    agents = [Agent("t", str(at)) for at in range(3)]
    fates = [one.status for one in await store.record([item("1", agent=one) for one in agents])]
    assert fates == [RecordStatus.STORED, RecordStatus.STORED, RecordStatus.TOO_MANY_AGENTS]
    assert [one.status for one in await store.record([item("2", agent=agents[0])])] == [RecordStatus.STORED]


async def test_only_registered_agents_if_so_set(make: Make, database: Database) -> None:
    store = make(limits=Limits(registered_only=True))
    await SqlAgentRegistry(database).register(ANN, "", most=9)
    fates = [one.status for one in await store.record([item("1"), item("1", agent=BOB)])]
    assert fates == [RecordStatus.STORED, RecordStatus.UNREGISTERED]


async def test_what_contradicts_itself_is_flagged_on_both_sides(store: SqlFeedbackStore) -> None:
    same = {"query": "q", "passage_id": "x"}
    await store.record([item("1", 1.0, **same), item("2", 0.9, **same), item("3")])
    # Another agent's judgement is no contradiction, and neither is one of another passage or collection.
    calm = [
        item("1", 0.0, agent=BOB, **same),
        item("4", 0.0, query="q", passage_id="y"),
        item("5", 0.0, collection="c", **same),
    ]
    assert await store.record(calm) == [STORED] * 3
    assert await store.record([item("6", 0.0, **same)]) == [Outcome(RecordStatus.STORED, Flag.CONTRADICTION)]
    assert await _ids(store, ANN) == ["3", "4", "5"]
    flags = {one.feedback.id: one.flag for one in await store.page(ANN, include_flagged=True)}
    assert {id_ for id_, flag in flags.items() if flag is Flag.CONTRADICTION} == {"1", "2", "6"}
    # Also within a batch.
    outcomes = await store.record([item("7", 0.0), item("8", 1.0, query="query of 7")])
    assert [one.flag for one in outcomes] == [Flag.NONE, Flag.CONTRADICTION]
    assert await _ids(store, ANN) == ["3", "4", "5"]


async def test_an_agent_that_always_says_the_same_tells_nothing(make: Make) -> None:
    store = make(rules=QualityRules(constant_run=4))
    await store.record([item("0", 0.0), item("1", 1.0), item("2", 1.0)])
    await store.record([item("3", 1.0), item("b", 1.0, agent=BOB)])
    assert await _ids(store) == ["0", "1", "2", "3", "b"]
    outcomes = await store.record([item("4", 1.0), item("5", 1.0)])
    assert [one.flag for one in outcomes] == [Flag.CONSTANT] * 2
    # The run is flagged from its first item on; what was before it is not.
    assert await _ids(store) == ["0", "b"]
    assert (await store.record([item("6", 0.0)]))[0].flag is Flag.NONE
    assert await _ids(store) == ["0", "b", "6"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_constant_run_is_flagged_whatever_comes_in_the_same_batch(make: Make, at_once: bool) -> None:
    store = make(rules=QualityRules(constant_run=4))
    said = [0.5, *[0.0] * 4, 0.8, *[1.0] * 4, 0.0]
    items = [item(f"{at:02}", usefulness) for at, usefulness in enumerate(said)]
    for part in [items] if at_once else [[one] for one in items]:
        await store.record(part)
    assert await _ids(store) == ["00", "05", "10"]


async def test_an_agent_that_contradicts_itself_often_is_not_believed(make: Make) -> None:
    store = make(rules=QualityRules(fewest_judged_again=4))
    for at in range(4):
        await store.record([item(f"a{at}", 1.0, query=str(at)), item(f"b{at}", 0.0, query=str(at))])
    (outcome,) = await store.record([item("new", 1.0)])
    assert outcome == Outcome(RecordStatus.STORED, Flag.INCONSISTENT)
    assert await _ids(store) == []
    assert (await store.record([item("new", 1.0, agent=BOB)])) == [STORED]


async def test_the_oldest_is_deleted_a_little_at_a_time(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    for at in range(10):
        clock.now_us = NOON_US + at
        await store.record([item(str(at), at / 10)])
    assert await store.delete_before(NOON_US + 7, limit=5) == 5
    assert await _ids(store) == [str(at) for at in range(5, 10)]
    assert await store.delete_before(NOON_US + 7, limit=5) == 2
    assert await store.delete_before(NOON_US + 7, limit=5) == 0
    (agent,) = await SqlAgentRegistry(database, clock=clock).agents(ALL.tenant)
    assert (agent.stored, agent.today) == (3, 10)
    assert agent.mean_usefulness == pytest.approx((0.7 + 0.8 + 0.9) / 3)


async def test_what_a_clock_ahead_stored_first_hides_nothing_that_is_due(
    store: SqlFeedbackStore, clock: Clock
) -> None:
    clock.now_us = NOON_US + 100
    await store.record([item("ahead-1"), item("ahead-2")])
    clock.now_us = NOON_US
    await store.record([item("due")])
    assert await store.delete_before(NOON_US + 1, limit=2) == 1
    assert await _ids(store) == ["ahead-1", "ahead-2"]


async def test_numbers_are_never_given_again(store: SqlFeedbackStore, clock: Clock) -> None:
    await store.record([item("1"), item("2")])
    last = (await store.page(ALL))[-1].sequence
    clock.now_us += 1
    assert await store.delete_before(clock.now_us, limit=10) == 2
    await store.record([item("3")])
    assert (await store.page(ALL))[0].sequence > last


async def test_agents_are_registered_once_and_counted(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    registry = SqlAgentRegistry(database, clock=clock)
    await store.record([item("1", 1.0), item("2", 0.5)])
    first = await registry.register(BOB, "answers", most=2)
    assert first is not None
    assert (first.agent, first.description, first.registered_at_us) == (BOB, "answers", NOON_US)
    clock.now_us += DAY_US
    again = await registry.register(BOB, "answers well", most=2)
    assert again == replace(first, description="answers well")
    ann = await registry.register(ANN, "", most=2)
    assert ann is not None
    assert (ann.stored, ann.today, ann.mean_usefulness) == (2, 0, 0.75)
    assert await registry.register(Agent("t", "c"), "", most=2) is None
    assert await registry.registered() == [ANN, BOB]
    listed = await registry.agents(ALL.tenant)
    assert [one.agent for one in listed] == [ANN, BOB]
    assert [one.agent for one in await registry.agents(ALL.tenant, skip=1)] == [BOB]
    for among, found in (([("qa", "bob"), ("t", "c")], [BOB]), ([("bob", "qa")], []), ([], [])):
        assert [one.agent for one in await registry.agents(ALL.tenant, among=among)] == found


async def _served(known: ServedRankings, query: str, agent: Agent, version: str, ids: list[str]) -> bool:
    one = item("1", agent=agent, query=query, passage_id=ids[0], model_version=version, ranking=tuple(ids))
    (found,) = await known.were_served([one])
    return found


async def test_what_was_served_is_recalled_newest_first(database: Database) -> None:
    store = SqlServedStore(database)
    key = served_key("q", ANN, "v")
    await store.remember(
        [
            ServedRanking(key, b"".join(passage_keys(["a"])), 1, "ann's"),
            ServedRanking(b"x" * 16, b"", 2, "bob's"),
        ]
    )
    await store.remember([ServedRanking(key, b"".join(passage_keys(["b", "a"])), 3, "ann's")])
    assert [len(one) for one in await store.recall(key)] == [16, 8]
    assert await store.forget_before(3, limit=10) == 2
    assert [len(one) for one in await store.recall(key)] == [16]


async def test_served_rankings_of_a_clock_ahead_hide_nothing_that_is_due(database: Database) -> None:
    store = SqlServedStore(database)
    key = served_key("q", ANN, "v")
    for passages, at in ((["a", "b"], 9), (["c"], 1)):
        await store.remember([ServedRanking(key, b"".join(passage_keys(passages)), at, "ann's")])
    assert await store.forget_before(5, limit=1) == 1
    assert [len(one) for one in await store.recall(key)] == [16]


async def test_a_tenant_that_is_served_much_loses_its_own_oldest_alone(database: Database) -> None:
    # A ranking of one passage is counted with 128 bytes and 8.
    store = SqlServedStore(database, tenant_bytes=10 * 136)

    def served(tenant: str, at: int) -> ServedRanking:
        return ServedRanking(f"{tenant} {at:>8}".encode(), b"passages", at, tenant)

    await store.remember([served("quiet", 0)])
    for begin in range(0, 40, 4):
        await store.remember([served("loud", at) for at in range(begin, begin + 4)])
    left = [at for at in range(40) if await store.recall(served("loud", at).key)]
    assert left == list(range(30, 40))
    assert await store.recall(served("quiet", 0).key)


async def test_passages_that_were_ranked_in_several_calls_were_served(
    database: Database, clock: Clock
) -> None:
    before = ServedRankings(SqlServedStore(database), capacity=2, flush_s=0.001, clock=clock)
    before.remember("q", ANN, "v", ["a", "b"])
    before.remember("q", ANN, "v", ["c"])
    await before.close()
    for knows in (before, ServedRankings(SqlServedStore(database), capacity=2, flush_s=0.001, clock=clock)):
        assert await _served(knows, "q", ANN, "v", ["c", "a"])
        assert not await _served(knows, "q", ANN, "v", ["c", "d"])


async def test_what_another_process_is_about_to_write_was_served(database: Database, clock: Clock) -> None:
    looked = asyncio.Event()

    class Looking(SqlServedStore):
        async def recall(self, key: bytes) -> Sequence[bytes]:
            found = await super().recall(key)
            looked.set()
            return found

    serves = ServedRankings(SqlServedStore(database), capacity=2, clock=clock)
    serves.remember("q", ANN, "v", ["a"])
    # Its look at last is as late as this: the other has written long before on any machine.
    asked = ServedRankings(Looking(database), capacity=2, flush_s=1.0, clock=clock)
    answer = asyncio.create_task(_served(asked, "q", ANN, "v", ["a"]))
    await looked.wait()
    assert not answer.done()
    await serves.close()
    assert await answer
    assert await asked.were_served([item("1"), item("2", ranking=())]) == [False, False]


async def test_what_is_kept_of_a_tenant_is_not_pushed_out_by_another(
    database: Database, clock: Clock
) -> None:
    class Away(SqlServedStore):
        async def remember(self, served: Sequence[ServedRanking]) -> None:
            raise Unavailable("AWAY", "away")

        async def recall(self, key: bytes) -> Sequence[bytes]:
            return ()

    served = ServedRankings(Away(database), capacity=5, flush_s=0.001, clock=clock)
    quiet, loud = replace(ANN, tenant="quiet"), replace(ANN, tenant="loud")
    served.remember("q", quiet, "v", ["a"])
    for at in range(20):
        served.remember(f"q{at}", loud, "v", ["a"])
        await served.close()  # what could not be written waits
    assert await _served(served, "q", quiet, "v", ["a"])
    assert [at for at in range(20) if await _served(served, f"q{at}", loud, "v", ["a"])] == [16, 17, 18, 19]


async def test_what_was_served_survives_a_restart(database: Database, clock: Clock) -> None:
    before = ServedRankings(SqlServedStore(database), capacity=2, flush_s=0.001, clock=clock)
    for at in range(3):
        before.remember(f"q{at}", ANN, "v", ["a", "b", "c"])
    await before.close()
    after = ServedRankings(SqlServedStore(database), capacity=2, flush_s=0.001, clock=clock)
    assert await _served(after, "q2", ANN, "v", ["c", "a"])
    assert not await _served(after, "q2", ANN, "v", ["a", "d"])
    assert not await _served(after, "q2", BOB, "v", ["a"])
    assert not await _served(after, "q2", ANN, "w", ["a"])


async def test_what_is_served_while_as_much_as_fits_is_written_is_written_too(
    database: Database, clock: Clock
) -> None:
    class Slow(SqlServedStore):
        async def remember(self, served: Sequence[ServedRanking]) -> None:
            await super().remember(served)
            if len(served) == 2:
                before.remember("q2", ANN, "v", ["a"])

    before = ServedRankings(Slow(database), capacity=2, flush_s=0.001, clock=clock)
    before.remember("q0", ANN, "v", ["a"])
    before.remember("q1", ANN, "v", ["a"])
    await before.close()
    await before.close()
    after = ServedRankings(SqlServedStore(database), capacity=2, flush_s=0.001, clock=clock)
    assert [await _served(after, f"q{at}", ANN, "v", ["a"]) for at in range(3)] == [True] * 3


async def test_what_waits_for_training(store: SqlFeedbackStore, database: Database, clock: Clock) -> None:
    log = SqlTrainingLog(database, clock=clock)
    assert await log.trainings(ALL.tenant) == []
    await store.record([item("1", query="q"), item("2", query="q", passage_id="x"), item("3")])
    await store.record([item("4", agent=BOB), item("5", 0.0, query="query of 3")])
    upto = (await store.page(ANN))[-1].sequence
    found = {one.report.agent: (one.pending, one.pending_queries) for one in await log.trainings(ALL.tenant)}
    # 3 and 5 contradict each other and wait for nothing.
    assert found == {ANN: (2, 1), BOB: (1, 1)}
    report = TrainingReport(ANN, State.RUNNING, 0.5, "epoch 1 of 2", upto, "v8")
    await log.report(report)
    training = await log.training(ANN)
    assert (training.report, training.pending, training.updated_at_us) == (report, 0, NOON_US)
    await log.report(TrainingReport(ALL, State.FAILED, 0.0, "out of memory", 1))
    found = {one.report.agent: (one.pending, one.pending_queries) for one in await log.trainings(ALL.tenant)}
    assert found == {None: (2, 2), ANN: (0, 0), BOB: (1, 1)}
    assert training.state(NOON_US + SILENT_US) == (State.RUNNING, "epoch 1 of 2")
    assert training.state(NOON_US + SILENT_US + 1)[0] is State.FAILED
    assert training.state(NOON_US - DAY_US)[0] is State.FAILED  # the clock went back


async def test_the_last_items_number_is_known(store: SqlFeedbackStore) -> None:
    assert await store.latest() == 0
    await store.record([item("1"), item("2")])
    assert await store.latest() == (await store.page(ALL))[-1].sequence


async def test_tenants_have_nothing_to_do_with_each_other(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    theirs = replace(ANN, tenant="acme")
    # The same agent, ids and judgements, in one batch; what contradicts is the other tenant's.
    batch = [item("1", query="q"), item("1", 0.0, query="q", agent=theirs), item("2", agent=theirs)]
    assert await store.record(batch) == [STORED] * 3
    assert await store.record(batch[:2]) == [DUPLICATE] * 2
    assert await store.find([item("2"), item("2", agent=theirs)]) == [None, DUPLICATE]
    assert [one.feedback for one in await store.page(ALL)] == batch[:1]
    assert [one.feedback for one in await store.page(AllAgents("acme"))] == batch[1:]
    assert [one.feedback for one in await store.page(theirs)] == batch[1:]
    assert await store.page(AllAgents("nobody")) == []

    registry = SqlAgentRegistry(database, clock=clock)
    assert await registry.register(theirs, "theirs", most=1) is not None
    assert await registry.register(ANN, "ours", most=1) is not None  # most is the tenant's
    assert await registry.register(replace(BOB, tenant="acme"), "", most=1) is None
    assert await registry.registered() == [ANN, theirs]
    listed = {tenant: await registry.agents(tenant) for tenant in (ALL.tenant, "acme", "nobody")}
    assert {tenant: [(one.agent, one.description) for one in found] for tenant, found in listed.items()} == {
        ALL.tenant: [(ANN, "ours")],
        "acme": [(theirs, "theirs")],
        "nobody": [],
    }

    log = SqlTrainingLog(database, clock=clock)
    await log.report(TrainingReport(AllAgents("acme"), State.FAILED, 0.0, "out of memory", 2))
    await log.report(TrainingReport(theirs, State.RUNNING, 0.5, "epoch 1"))
    ours, acmes = [await log.trainings(tenant) for tenant in (ALL.tenant, "acme")]
    # Nobody reported a training for all of our agents.
    assert [(one.report.scope, one.report.state, one.pending) for one in ours] == [(ANN, State.IDLE, 1)]
    assert [(one.report.scope, one.report.state, one.pending) for one in acmes] == [
        (AllAgents("acme"), State.FAILED, 1),
        (theirs, State.RUNNING, 2),
    ]
    assert (await log.training(replace(BOB, tenant="acme"))).pending == 0
    assert [one.report.scope for one in await log.trainings_of_agents()] == [ANN, theirs]

    leases = [SqlLeases(database, name, lease_s=60, clock=clock) for name in ("one", "two")]
    assert [await leases[0].take(ANN), await leases[1].take(theirs), await leases[1].take(ANN)] == [
        True,
        True,
        False,
    ]
    assert served_key("q", ANN, "v") != served_key("q", theirs, "v")


async def test_a_tenant_with_all_its_agents_takes_no_place_of_anothers(make: Make) -> None:
    store = make(limits=Limits(agents=1))
    others = [replace(one, tenant="acme") for one in (ANN, BOB)]
    outcomes = await store.record([item("1", agent=one) for one in (*others, ANN)])
    assert [one.status for one in outcomes] == [
        RecordStatus.STORED,
        RecordStatus.TOO_MANY_AGENTS,
        RecordStatus.STORED,
    ]


async def test_an_agent_is_deleted_with_all_that_is_its_own(
    make: Make, database: Database, clock: Clock
) -> None:
    store = make(limits=Limits(agents=2, tenant_bytes=10_000))
    registry, log = SqlAgentRegistry(database, clock=clock), SqlTrainingLog(database, clock=clock)
    leases = SqlLeases(database, "one", lease_s=10, clock=clock)
    assert await store.delete_agent(ANN, limit=2) is None
    await registry.register(ANN, "answers", most=2)
    # The second judgement contradicts the first, so both are flagged.
    judged = [item(str(at), float(at != 1), query="q" if at < 2 else f"q{at}") for at in range(5)]
    await store.record([*judged, item("1", agent=BOB), item("1", agent=replace(ANN, tenant="acme"))])
    for agent in (ANN, BOB):
        await log.report(TrainingReport(agent, State.FAILED, message="of it"))
        assert await leases.take(agent)
    before = await store.page(BOB)

    # Some at a time: what is left is counted, and it is still there.
    assert await store.delete_agent(ANN, limit=3) == 3
    (ann, bob) = await registry.agents(ALL.tenant)
    assert (ann.agent, ann.stored, ann.flagged, ann.mean_usefulness) == (ANN, 2, 0, 1.0)
    assert await store.delete_agent(ANN, limit=3) == 2
    assert await store.delete_agent(ANN, limit=3) is None
    assert await registry.agents(ALL.tenant) == [bob]
    assert await registry.registered() == []
    assert await _ids(store, ANN) == []
    assert (await log.training(ANN)).report.message == ""
    assert not await leases.take(ANN)

    # Of others nothing is gone.
    assert await store.page(BOB) == before
    assert (await log.training(BOB)).report.message == "of it"
    assert await leases.take(BOB)
    assert await _ids(store, AllAgents("acme")) == ["1"]

    # It takes no place and no bytes, and one of its ids afterwards is a new agent, that no trainer has.
    clock.now_us += DAY_US
    assert await store.record([item("0", 0.5, query="q")]) == [STORED]
    (new,) = (one for one in await registry.agents(ALL.tenant) if one.agent == ANN)
    assert (new.stored, new.flagged, new.registered_at_us, new.description) == (1, 0, None, "")
    many = [item(f"n{at}") for at in range(100)]
    freed = await make(limits=Limits(tenant_bytes=sum(one.size for one in many))).record(many)
    assert sum(one == STORED for one in freed) >= 97, "the deleted items take no room"
    assert await leases.take(ANN)
    await leases.give_back(ANN)


async def test_a_trainer_loses_an_agent_that_is_deleted_though_there_is_a_new_one(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    leases = SqlLeases(database, "one", lease_s=10, clock=clock)
    await store.record([item("1")])
    assert await leases.take(ANN)
    assert await store.delete_agent(ANN, limit=10) == 1
    await store.record([item("2")])
    assert not await leases.take(ANN), "it learns from what is deleted"
    await leases.give_back(ANN)
    assert await leases.take(ANN)  # of the new one's feedback


async def test_an_agent_without_feedback_is_deleted_too(database: Database, store: SqlFeedbackStore) -> None:
    registry = SqlAgentRegistry(database)
    await registry.register(ANN, "", most=1)
    assert await registry.register(BOB, "", most=1) is None
    assert await store.delete_agent(ANN, limit=10) == 0
    assert await registry.register(BOB, "", most=1) is not None


async def test_feedback_that_comes_while_its_agent_is_deleted_is_whole(
    store: SqlFeedbackStore, database: Database
) -> None:
    async def give() -> int:
        stored = 0
        for at in range(15):
            stored += (await store.record([item(str(at))])) == [STORED]
        return stored

    async def delete() -> int:
        gone = 0
        for _ in range(15):
            gone += await store.delete_agent(ANN, limit=2) or 0
        return gone

    stored, gone = await asyncio.gather(give(), delete())
    left = await store.page(ANN)
    assert stored == gone + len(left)
    summaries = await SqlAgentRegistry(database).agents(ALL.tenant)
    assert sum(one.stored for one in summaries) == len(left)


async def test_one_trainer_at_a_time_has_an_agent(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    one = SqlLeases(database, "one", lease_s=10, clock=clock)
    other = SqlLeases(database, "other", lease_s=10, clock=clock)
    assert not await one.take(ANN)  # who never gave feedback
    await store.record([item("1"), item("2", agent=BOB)])
    assert sorted(await asyncio.gather(one.take(ANN), other.take(ANN))) == [False, True]
    await one.give_back(ANN)
    await other.give_back(ANN)
    assert await one.take(ANN)
    assert await other.take(BOB)
    clock.now_us += 9 * 10**6
    assert await one.take(ANN)  # for longer
    assert not await other.take(ANN)
    await other.give_back(ANN)  # which is not its to give
    assert not await other.take(ANN)
    clock.now_us += 11 * 10**6  # as after a kill
    assert await other.take(ANN)
    assert not await one.take(ANN)


async def test_so_many_trainers_at_a_time_have_agents(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    carl = Agent("qa", "carl")
    await store.record([item("1"), item("2", agent=BOB), item("3", agent=carl)])
    one, two, three = (
        SqlLeases(database, name, lease_s=10, at_once=2, clock=clock) for name in ("one", "two", "three")
    )
    assert [await one.take(ANN), await two.take(BOB), await three.take(carl)] == [True, True, False]
    assert [await one.take(carl), await one.take(ANN)] == [True, True]  # which has agents already
    await two.give_back(BOB)
    assert [await three.take(BOB), await two.take(carl)] == [True, False]
    clock.now_us += 11 * 10**6  # as after all were killed
    assert [await two.take(ANN), await three.take(BOB), await one.take(carl)] == [True, True, False]


async def test_a_clock_that_goes_backwards_keeps_no_agent_for_a_dead_trainer(
    store: SqlFeedbackStore, database: Database, clock: Clock
) -> None:
    await store.record([item("1"), item("2", agent=BOB)])
    dead, lives, third = (
        SqlLeases(database, name, lease_s=60, at_once=2, clock=clock) for name in ("dead", "lives", "third")
    )
    assert [await dead.take(ANN), await lives.take(BOB)] == [True, True]
    clock.now_us -= DAY_US
    assert await lives.take(BOB)  # as it does all the time
    assert [await third.take(BOB), await third.take(ANN)] == [False, True]
    assert not await dead.take(ANN)


async def test_a_closed_database_is_unavailable(url: URL) -> None:
    with pytest.raises(Unavailable, match="not open"):
        await SqlFeedbackStore(Database(url)).record([item("1")])


async def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot make the folder"):
        await Database(URL.create("sqlite+aiosqlite", database=str(tmp_path / "file" / "x.db"))).open()
