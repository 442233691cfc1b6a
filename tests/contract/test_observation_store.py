"""The contract of ``evenmesh_evaluator.backends.sql.SqlObservationStore``, run against every database there is here."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
from sqlalchemy import URL, Engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from evenmesh.wire.errors import Unavailable
from evenmesh_core.group_fairness import Attribute, Nugget
from evenmesh_evaluator.backends import sql_deletion, sql_segments
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import (
    MEASURED,
    NORMALIZED,
    Configuration,
    Exposed,
    JudgedConversation,
    Labels,
    Measurement,
    Observation,
    ObservedConversation,
    Quotas,
    RunReport,
    SampledAnswer,
    Scope,
    Stage,
    Window,
)
from evenmesh_evaluator.observations.scores import measure
from evenmesh_evaluator.reports.aggregate import Aggregate
from evenmesh_evaluator.reports.moments import Moments
from evenmesh_evaluator.reports.summary import report as report_of
from evenmesh_kit.security.caller import DEFAULT_TENANT

MINUTE_US = 60 * 10**6
HOUR_US = 60 * MINUTE_US
NOON_US = 20_000 * 24 * HOUR_US + 12 * HOUR_US


class Clock:
    """A clock that tests move."""

    def __init__(self, now_us: int = NOON_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    """Noon of some day, until it is moved."""
    return Clock()


@pytest.fixture
async def store(url: URL, clock: Clock) -> AsyncIterator[SqlObservationStore]:
    """An open store."""
    store = SqlObservationStore(url, clock=clock)
    await store.open()
    yield store
    await store.close()


def _observation(id_: str, *, run_id: str = "run", **changes: Any) -> Observation:
    settings: dict[str, Any] = {
        "id": id_,
        "run_id": run_id,
        "query_id": "q",
        "observed_at_us": 1_000,
        "passage_ids": ["a", "b", "c"],
        "providers": ["P", "Q", ""],
        "shown": np.array([[0, 1], [0, 2]]),
        "answers": (SampledAnswer("Rhine", (0,)),),
        "labels": Labels(useful=frozenset("a"), references=("Rhine",)),
        "stage_ms": {Stage.RETRIEVE: 2.0},
        "payload": id_.encode(),
    }
    return Observation(**(settings | changes))


def _measured(*observations: Observation) -> list[tuple[Observation, Measurement]]:
    return [(observation, measure(observation)) for observation in observations]


async def _report(
    store: SqlObservationStore,
    scope: Scope = "run",
    window: Window = Window.ALL,
    *,
    max_names: int = 100,
    tenant: str = DEFAULT_TENANT,
) -> RunReport:
    totals = await store.totals(tenant, scope, window)
    assert totals is not None
    return report_of(scope, window, totals, max_names=max_names)


async def test_an_id_is_new_once(store: SqlObservationStore) -> None:
    first = await store.append(_measured(_observation("1"), _observation("2"), _observation("1")))
    again = await store.append(_measured(_observation("2"), _observation("3")))
    assert list(first) == [True, True, False]
    assert list(again) == [False, True]
    assert (await _report(store)).num_observations == 3


async def test_a_second_observation_of_an_id_changes_nothing(store: SqlObservationStore) -> None:
    await store.append(_measured(_observation("1")))
    before = await _report(store)
    other = _observation("1", shown=np.array([[1, 2]]), observed_at_us=9, degradations=((Stage.RERANK, "X"),))
    assert list(await store.append(_measured(other))) == [False]
    assert list(await store.append(_measured(_observation("1", run_id="other")))) == [False]
    assert await _report(store) == before
    assert await store.totals(DEFAULT_TENANT, "other", Window.ALL) is None


async def test_tenants_have_nothing_to_do_with_each_other(store: SqlObservationStore) -> None:
    talk = _conversation("talk", 0.5)
    mine = _observation("1", conversation=talk)
    theirs = [
        _observation("1", tenant="acme", answers=(SampledAnswer("Elbe", (0,)),), conversation=talk),
        _observation("2", tenant="acme", run_id="other", answers=(SampledAnswer("Elbe", (0,)),)),
    ]
    # The same id, run, query and conversation, in one batch and again.
    assert list(await store.append(_measured(mine, *theirs, mine))) == [True, True, True, False]
    assert list(await store.append(_measured(*theirs))) == [False, False]
    reports = [await _report(store, tenant=tenant) for tenant in (DEFAULT_TENANT, "acme")]
    assert [report.num_observations for report in reports] == [1, 1]
    assert [report.estimates["expected_utility"].mean for report in reports] == [1.0, 0.0]
    assert [report.estimates["conversation_relevance"].count for report in reports] == [1, 1]
    # u_max is the tenant's: whether it is 1 or 0 for the other cannot be seen (0 / 0 is undefined).
    assert [report.estimates[NORMALIZED].mean for report in reports] == [1.0, None]
    assert (await _report(store, Configuration(), tenant="acme")).num_observations == 2
    assert (await _report(store, Configuration())).num_observations == 1
    assert await store.totals(DEFAULT_TENANT, "other", Window.ALL) is None
    assert await store.totals("nobody", Configuration(), Window.ALL) is None
    runs = {
        tenant: await store.runs(tenant, before=None, limit=9) for tenant in (DEFAULT_TENANT, "acme", "b")
    }
    assert {tenant: [one.scope for one in found] for tenant, found in runs.items()} == {
        DEFAULT_TENANT: ["run"],
        "acme": ["other", "run"],
        "b": [],
    }
    measured = await store.measurements("acme", "run", after=-1, limit=9)
    assert [(one.observation_id, one.quantities["expected_utility"]) for one in measured] == [("1", 0.0)]
    assert list(await store.measurements(DEFAULT_TENANT, "other", after=-1, limit=9)) == []
    assert list(await store.configurations("nobody", before=None, limit=9)) == []


async def test_concurrent_appends_store_each_id_once(url: URL, clock: Clock) -> None:
    # Two evaluators on one database, eight writers, all with the same ids in different orders. SQLite gives its lock to anyone
    # who asks for it at the right moment: on a slow machine one writer can wait while all others write.
    store, other = (SqlObservationStore(url, lock_timeout_s=600, clock=clock) for _ in range(2))
    await store.open()
    await other.open()

    async def write(writer: int) -> int:
        target: SqlObservationStore = store if writer % 2 else other
        new = 0
        for start in range(0, 40, 5):
            ids = [(7 * writer + start + step) % 40 for step in range(5)]
            new += sum(await target.append(_measured(*(_observation(str(one)) for one in ids))))
        return new

    try:
        assert sum(await asyncio.gather(*map(write, range(8)))) == 40
        report = await _report(other)
        assert report.num_observations == 40
        assert report.estimates["ee_d"].count == 40
        assert report.stages[Stage.RETRIEVE].count == 40
    finally:
        await store.close()
        await other.close()


async def test_aggregates_add_up_and_survive_a_restart(
    url: URL, store: SqlObservationStore, clock: Clock
) -> None:
    # Useful: a. Observation i shows (a, b) or (b, c) by turns, in batches of different sizes.
    contexts = [[[0, 1]], [[1, 2]]]
    observations = [
        _observation(
            str(i),
            shown=np.array(contexts[i % 2]),
            observed_at_us=1_000 + (i * 7) % 10,
            answers=(SampledAnswer("Rhine" if i % 4 else "Elbe", (0,)),) if i % 5 else (),
            stage_ms={Stage.RETRIEVE: float(i), Stage.GENERATE: 10.0},
            degradations=((Stage.RERANK, "BUDGET_EXCEEDED"),) * (i % 3),
        )
        for i in range(10)
    ]
    for start, end in ((0, 1), (1, 4), (4, 10)):
        await store.append(_measured(*observations[start:end]))
    reopened = SqlObservationStore(url, clock=clock)
    await reopened.open()
    try:
        report = await _report(reopened)
    finally:
        await reopened.close()

    assert report == await _report(store)
    assert (report.num_observations, report.num_rankings) == (10, 10)
    assert report.num_unanswered == 2  # 0 and 5
    assert (report.started_at_us, report.updated_at_us) == (1_000, 1_009)
    # One deterministic context of two: EE-D = 2, its bound 2. EE-R: ε* = (1, 1/2, 1/2), so 3/2 or 1 by turns.
    assert report.estimates["ee_d"].mean == pytest.approx(2.0)
    assert report.estimates["ee_d_norm"].mean == pytest.approx(1.0)
    expected = Moments.of([1.5, 1.0] * 5).estimate()
    assert report.estimates["ee_r"].mean == pytest.approx(expected.mean)
    assert report.estimates["ee_r"].low == pytest.approx(expected.low)
    # 4 and 8 are wrong, 0 and 5 have no answer: 6 of 8 are right.
    assert report.estimates["expected_utility"].mean == pytest.approx(6 / 8)
    assert (report.estimates["expected_utility"].count, report.estimates["expected_utility"].undefined) == (
        8,
        2,
    )
    assert report.stages[Stage.RETRIEVE].mean == pytest.approx(4.5)
    assert report.stages[Stage.GENERATE].mean == 10.0
    # i % 3 degradations each: 0+1+2 + 0+1+2 + 0+1+2 + 0.
    assert list(report.degradations) == [(Stage.RERANK, "BUDGET_EXCEEDED", 9)]


async def test_providers_are_summed_with_their_targets(store: SqlObservationStore) -> None:
    # Twice contexts {a, b}, {a, c}: ε = (1, 1/2, 1/2). Labelled once: ε* = (1, 1/2, 1/2) of (P, Q, unknown).
    await store.append(
        _measured(_observation("1"), _observation("2", labels=Labels()), _observation("3", labels=Labels()))
    )
    report = await _report(store)
    assert [share.name for share in report.providers] == ["P", "Q"]
    first, second = report.providers
    assert (first.exposure, second.exposure) == (3.0, 1.5)
    # The unknown provider's 3/2 counts in the whole: 3 of 6 and 3/2 of 6.
    assert (first.share, second.share) == (0.5, 0.25)
    assert (first.target, second.target) == (1.0, 0.5)


async def test_a_report_holds_no_connection_while_it_sums(
    store: SqlObservationStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append(_measured(_observation("1"), _observation("2")))
    pool: Any = cast(Any, store)._database._reader.sync_engine.pool
    held: list[int] = []
    merged = sql_segments._sum

    def counted(*parts: Any) -> Aggregate:
        held.append(pool.checkedout())
        return merged(*parts)

    monkeypatch.setattr(sql_segments, "_sum", counted)
    assert (await _report(store)).num_observations == 2
    clock.now_us += MINUTE_US
    await store.append(_measured(_observation("3", observed_at_us=clock.now_us)))
    held.clear()
    assert (await _report(store)).num_observations == 3
    assert held == [0] * len(held) != []


async def test_without_labels_no_provider_has_a_target(store: SqlObservationStore) -> None:
    await store.append(_measured(_observation("1", labels=Labels())))
    assert [share.target for share in (await _report(store)).providers] == [None, None]


DAY_US = 24 * HOUR_US
DAY = NOON_US // DAY_US


def _shown_on(id_: str, day: int, **changes: Any) -> Observation:
    """P deserves 0.75 of the context {a, b} or {a, c}, and gets half; Q deserves 0.25, and gets a quarter."""
    given = {"observed_at_us": day * DAY_US, "merit_shares": np.array([0.75, 0.25, 0.0])}
    return _observation(id_, **(given | changes))


async def test_days_of_providers_add_up_by_configuration(url: URL, store: SqlObservationStore) -> None:
    other = Configuration("zoo")
    cited = (SampledAnswer("Rhine", (0,), (0, 2)),)
    await store.append(_measured(_shown_on("1", DAY), _shown_on("2", DAY, answers=cited)))
    await store.append(_measured(_shown_on("1", DAY), _shown_on("3", DAY, merit_shares=None)))
    await store.append(_measured(_shown_on("4", DAY - 1), _shown_on("5", DAY, configuration=other)))
    found = await store.provider_days(DEFAULT_TENANT, "P", first_day=DAY - 1, last_day=DAY)
    assert [(one.configuration, one.day, one.num_found) for one in found] == [
        (Configuration(), DAY - 1, 1),
        (Configuration(), DAY, 3),
        (other, DAY, 1),
    ]
    day = found[1]
    assert (day.num_shown, day.num_cited, day.num_targeted) == (3, 1, 2)
    assert (day.exposure, day.exposure_squares, day.exposure_targeted) == (1.5, 0.75, 1.0)
    assert (day.target, day.target_squares, day.owed_squares) == (1.5, 1.125, 0.125)
    assert not await store.provider_days(DEFAULT_TENANT, "P", first_day=DAY + 1, last_day=DAY + 9)
    assert not await store.provider_days("acme", "P", first_day=0, last_day=DAY)
    assert not await store.provider_days(DEFAULT_TENANT, "", first_day=0, last_day=DAY)
    (q, *_) = await store.provider_days(DEFAULT_TENANT, "Q", first_day=DAY, last_day=DAY)
    assert (q.num_shown, q.exposure, q.target) == (3, 0.75, 0.5)


async def test_a_balance_fades_counts_every_configuration_and_can_be_forgotten(
    store: SqlObservationStore, clock: Clock
) -> None:
    zoo, other = Configuration("zoo"), Configuration("zoo", alpha=2.0)
    await store.append(
        _measured(
            _shown_on("1", DAY, configuration=zoo),
            _shown_on("2", DAY, configuration=other),
            _shown_on("3", DAY - 2, configuration=zoo),
            _shown_on("4", DAY, configuration=Configuration("another")),
            _shown_on("5", DAY, configuration=zoo, merit_shares=None),
            _shown_on("6", DAY, configuration=zoo, tenant="acme"),
        )
    )
    # It is noon: today's asks are as of now, those of two days before a quarter at a half-life of a day.
    found = await store.balance(DEFAULT_TENANT, "zoo", half_life_days=1.0, limit=9)
    assert [one.provider for one in found] == ["P", "Q"]
    assert (found[0].target, found[0].exposure) == pytest.approx((2.25 * 0.75, 2.25 * 0.5))
    assert len(await store.balance(DEFAULT_TENANT, "zoo", half_life_days=1.0, limit=1)) == 1
    clock.now_us += DAY_US
    later = await store.balance(DEFAULT_TENANT, "zoo", half_life_days=1.0, limit=9)
    assert later[0].target == pytest.approx(found[0].target / 2)
    assert await store.reset_balance(DEFAULT_TENANT, "zoo") == 2
    assert await store.reset_balance(DEFAULT_TENANT, "zoo") == 0
    assert not await store.balance(DEFAULT_TENANT, "zoo", half_life_days=1.0, limit=9)
    assert len(await store.balance(DEFAULT_TENANT, "another", half_life_days=1.0, limit=9)) == 2
    assert len(await store.balance("acme", "zoo", half_life_days=1.0, limit=9)) == 2
    # What comes afterwards counts, and statements stay.
    await store.append(_measured(_shown_on("7", DAY + 1, configuration=zoo)))
    (again, _) = await store.balance(DEFAULT_TENANT, "zoo", half_life_days=1.0, limit=9)
    assert again.target == pytest.approx(0.75)
    days = await store.provider_days(DEFAULT_TENANT, "P", first_day=DAY, last_day=DAY)
    assert sum(one.num_found for one in days) == 4


async def test_days_of_providers_are_kept_for_as_long_as_is_set(url: URL, clock: Clock) -> None:
    store = SqlObservationStore(url, clock=clock, provider_days=2)
    none = SqlObservationStore(url, clock=clock, provider_days=0)
    await store.open()
    await none.open()
    try:
        await none.append(_measured(_shown_on("0", DAY)))
        assert not await none.provider_days(DEFAULT_TENANT, "P", first_day=0, last_day=DAY)
        await store.append(_measured(_shown_on("1", DAY), _shown_on("2", DAY - 1), _shown_on("3", DAY - 2)))
        found = await store.provider_days(DEFAULT_TENANT, "P", first_day=0, last_day=DAY)
        assert [one.day for one in found] == [DAY - 1, DAY]
        clock.now_us += DAY_US
        await store.append(_measured(_shown_on("4", DAY + 1)))
        found = await store.provider_days(DEFAULT_TENANT, "P", first_day=0, last_day=DAY + 1)
        assert [one.day for one in found] == [DAY, DAY + 1]
    finally:
        await store.close()
        await none.close()


async def test_the_most_exposed_providers_come_first_and_few(store: SqlObservationStore) -> None:
    names = ["", *(f"p{i}" for i in range(120))]
    exposed = Exposed(names, np.array([70.0, *(float(i % 50) for i in range(120))]), None)
    measurement = Measurement(dict.fromkeys(MEASURED), 1, 1, None, exposed, exposed)
    await store.append([(_observation("1"), measurement)])
    report = await _report(store, max_names=3)
    # Of the same exposure the first by name; what has no name is not among them.
    assert [share.name for share in report.providers] == ["p49", "p99", "p48"]
    assert [share.name for share in report.passages] == ["p49", "p99", "p48"]


async def test_runs_are_listed_newest_first_in_stable_pages(store: SqlObservationStore) -> None:
    for i in range(5):
        await store.append(_measured(_observation(str(i), run_id=f"run-{i}")))
    page = await store.runs(DEFAULT_TENANT, before=None, limit=2)
    assert [run.scope for run in page] == ["run-4", "run-3"]
    # What happens meanwhile moves no run to another page.
    await store.append(_measured(_observation("x", run_id="run-0"), _observation("y", run_id="run-9")))
    rest = await store.runs(DEFAULT_TENANT, before=page[-1].sequence, limit=10)
    assert [(run.scope, run.num_observations) for run in rest] == [("run-2", 1), ("run-1", 1), ("run-0", 2)]
    assert (await store.runs(DEFAULT_TENANT, before=None, limit=1))[0].scope == "run-9"


async def test_numbers_of_runs_tell_nothing_of_other_tenants(store: SqlObservationStore) -> None:
    for i in range(3):
        for tenant in ("acme", "b"):
            await store.append(_measured(replace(_observation(str(i), run_id=f"run-{i}"), tenant=tenant)))
    page = await store.runs("acme", before=None, limit=2)
    assert [(run.scope, run.sequence) for run in page] == [("run-2", 3), ("run-1", 2)]
    last = await store.runs("acme", before=2, limit=2)
    assert [(run.scope, run.sequence) for run in last] == [("run-0", 1)]
    assert list(await store.runs("acme", before=1, limit=2)) == []


async def test_a_tenant_keeps_as_much_as_it_may_and_others_are_not_concerned(url: URL, clock: Clock) -> None:
    store = SqlObservationStore(url, clock=clock, quotas=Quotas(bytes=100_000, runs=2, configurations=2))
    await store.open()

    async def stored(id_: str, tenant: str = "acme", run: str = "run-1", **changes: Any) -> bool | None:
        one = replace(_observation(id_, run_id=run), tenant=tenant, **changes)
        (outcome,) = await store.append(_measured(one))
        return outcome

    try:
        assert await stored("1") is True
        assert await stored("2", run="run-2") is True
        assert await stored("3", run="run-3") is None
        assert await stored("3", run="run-2") is True
        other = Configuration("c2", "r", "r", "g", None)
        assert await stored("4", configuration=other) is True
        assert await stored("5", configuration=replace(other, collection="c3")) is None
        assert await stored("6", payload=b"x" * 100_000) is None
        assert await stored("1", run="run-9") is False  # known: nothing changes
        assert await stored("3", tenant="b", run="run-3") is True
        # Of one batch, as many as fit, in their order.
        many = [
            replace(_observation(f"n{i}", run_id="run-1"), tenant="b", payload=b"x" * 40_000)
            for i in range(4)
        ]
        assert list(await store.append(_measured(*many))) == [True, True, None, None]
        assert [run.num_observations for run in await store.runs("acme", before=None, limit=9)] == [2, 2]
    finally:
        await store.close()


async def test_a_tenant_at_its_quota_takes_nothing_from_the_others_of_its_batch(
    url: URL, clock: Clock
) -> None:
    store = SqlObservationStore(url, clock=clock, quotas=Quotas(bytes=100_000, runs=2, configurations=2))
    await store.open()

    def one(id_: str, tenant: str, run: str) -> Observation:
        return replace(_observation(id_, run_id=run), tenant=tenant)

    try:
        for turn in range(2):  # the second time the store knows that the tenant is full
            batch = [
                *(one(f"{turn}-{i}", "acme", f"run-{i}") for i in range(4)),
                one(f"{turn}", "b", f"run-{turn}"),
                one(f"{turn}-1", "acme", "run-1"),
            ]
            assert list(await store.append(_measured(*batch))) == [True, True, None, None, True, False]
        for tenant, counts in (("acme", [2, 2]), ("b", [1, 1])):
            runs = await store.runs(tenant, before=None, limit=9)
            assert [(run.scope, run.num_observations) for run in runs] == [
                ("run-1", counts[1]),
                ("run-0", counts[0]),
            ]
        assert await _usage(url) == await _recounted(url)
    finally:
        await store.close()


async def test_stores_on_one_database_keep_a_quota_together(url: URL, clock: Clock) -> None:
    quotas = Quotas(bytes=100_000, runs=3)
    stores = [SqlObservationStore(url, clock=clock, quotas=quotas) for _ in range(2)]
    for store in stores:
        await store.open()
    try:
        stored = await asyncio.gather(
            *(
                stores[i % 2].append(
                    _measured(_observation(str(i), run_id=f"run-{i}", payload=b"x" * 10_000))
                )
                for i in range(8)
            )
        )
        assert sorted(one for (one,) in stored if one) == [True] * 3
        runs = await stores[0].runs(DEFAULT_TENANT, before=None, limit=9)
        for i in range(8, 24):
            await stores[i % 2].append(
                _measured(_observation(str(i), run_id=str(runs[0].scope), payload=b"x" * 10_000))
            )
        ((num_bytes, num_runs, _),) = (await _usage(url)).values()
        assert num_runs == 3
        assert 100_000 - 12_048 < num_bytes <= 100_000
        assert await _usage(url) == await _recounted(url)
    finally:
        for store in stores:
            await store.close()


async def test_a_day_of_a_provider_counts_once_and_until_it_is_dropped(url: URL, clock: Clock) -> None:
    store = SqlObservationStore(url, clock=clock, provider_days=2)
    await store.open()
    try:
        for batch in (("1", "2"), ("3",)):  # two providers, on one day
            await store.append(_measured(*(_shown_on(id_, DAY) for id_ in batch)))
        assert await _usage(url) == {DEFAULT_TENANT: (3 * (1024 + 1) + 2 * 256 + 512, 1, 1)}
        clock.now_us += 2 * DAY_US
        await store.append(_measured(_shown_on("4", DAY + 2), _shown_on("5", DAY + 1)))
        assert await _usage(url) == {DEFAULT_TENANT: (5 * (1024 + 1) + 4 * 256 + 512, 1, 1)}
        assert await _usage(url) == await _recounted(url)
    finally:
        await store.close()


async def test_old_observations_are_deleted_and_make_room_and_reports_stay(
    url: URL, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlObservationStore(url, clock=clock, quotas=Quotas(bytes=11_000))
    await store.open()

    async def stored(id_: str, tenant: str = DEFAULT_TENANT) -> bool | None:
        one = replace(_shown_on(id_, DAY), tenant=tenant, payload=b"x" * 3_000)
        (outcome,) = await store.append(_measured(one))
        return outcome

    try:
        assert [await stored(id_) for id_ in ("a1", "a2", "a3")] == [True, True, None]
        assert await stored("b1", "acme") is True
        first = clock.now_us
        clock.now_us += DAY_US
        assert await stored("b2", "acme") is True
        before = await _report(store), await _report(store, tenant="acme")
        monkeypatch.setattr(sql_deletion, "MAX_STEP", 2)
        assert [await store.delete_before(at) for at in (first, first + 1, first + 1)] == [0, 2, 1]
        assert await store.delete_before(first + 1) == 0
        assert await store.observation(DEFAULT_TENANT, "a1") is None
        assert await store.observation("acme", "b2") == b"x" * 3_000
        page = await store.measurements("acme", "run", after=-1, limit=9)
        assert [one.observation_id for one in page] == ["b2"]
        assert (await _report(store), await _report(store, tenant="acme")) == before
        usage = await _usage(url)
        assert usage[DEFAULT_TENANT] == (2 * 256 + 512, 1, 1)
        assert usage["acme"] == (await _recounted(url))["acme"]
        assert [await stored(id_) for id_ in ("a3", "a4", "a5")] == [True, True, None]
    finally:
        await store.close()


async def test_what_is_due_is_found_behind_what_a_clock_ahead_stored(
    store: SqlObservationStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_deletion, "MAX_STEP", 2)
    clock.now_us += HOUR_US
    await store.append(_measured(*(_observation(f"ahead-{number}") for number in range(5))))
    clock.now_us -= HOUR_US
    await store.append(_measured(_observation("due")))
    assert await store.delete_before(clock.now_us + 1) == 1
    assert await store.observation(DEFAULT_TENANT, "due") is None
    assert len(await store.measurements(DEFAULT_TENANT, "run", after=-1, limit=9)) == 5


async def test_a_step_deletes_few_bytes_or_one_observation(
    store: SqlObservationStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_deletion, "_STEP_BYTES", 5)
    sizes = (2, 3, 1, 9, 1)
    await store.append(_measured(*(_observation(f"{i}", payload=b"x" * n) for i, n in enumerate(sizes))))
    steps = [await store.delete_before(clock.now_us + 1) for _ in range(5)]
    assert steps == [2, 1, 1, 1, 0]


async def _delete_run(
    store: SqlObservationStore, run_id: str, tenant: str = DEFAULT_TENANT
) -> tuple[int, bool]:
    number = 0
    while not (step := await store.delete_run_step(tenant, run_id)).ended:
        number += step.num_observations
    return number, step.found


async def test_a_deleted_run_leaves_sums_over_all_runs(
    store: SqlObservationStore, url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_deletion, "MAX_STEP", 2)
    kept = [_shown_on("kept", DAY, run_id="kept"), _shown_on("theirs", DAY, run_id="mine", tenant="acme")]
    await store.append(_measured(*kept, *(_shown_on(f"{number}", DAY, run_id="mine") for number in range(5))))
    configuration = Configuration()

    async def remaining() -> list[Any]:
        return [
            await _report(store, configuration),
            await _report(store, "kept"),
            await _report(store, "mine", tenant="acme"),
            await store.provider_days(DEFAULT_TENANT, "P", first_day=DAY, last_day=DAY),
        ]

    before = await remaining()
    assert await _delete_run(store, "mine") == (5, True)
    assert await _delete_run(store, "mine") == (0, False)
    assert await remaining() == before
    assert await store.totals(DEFAULT_TENANT, "mine", Window.ALL) is None
    assert [one.scope for one in await store.runs(DEFAULT_TENANT, before=None, limit=9)] == ["kept"]
    assert not await store.measurements(DEFAULT_TENANT, "mine", after=-1, limit=9)
    assert [await store.observation(DEFAULT_TENANT, id_) for id_ in ("0", "kept")] == [None, b"kept"]
    assert await _usage(url) == await _recounted(url)


async def test_a_run_after_a_deleted_one_has_no_sum_of_it(store: SqlObservationStore) -> None:
    await store.append(_measured(_observation("0", run_id="first")))
    for number, name in enumerate(("second", "third", "second", "second")):
        # Sums of all but the newest bucket are remembered.
        of_1970 = [_observation(f"{number} {place}", run_id=name) for place in range(number + 1)]
        newest = _observation(f"{number} newest", run_id=name, observed_at_us=NOON_US)
        await store.append(_measured(*of_1970, newest))
        assert (await _report(store, name)).num_observations == number + 2
        assert await _delete_run(store, name) == (number + 2, True)


async def test_what_is_observed_of_a_run_while_it_is_deleted_goes_with_it(
    store: SqlObservationStore, url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_deletion, "MAX_STEP", 2)
    await store.append(_measured(*(_observation(f"{number}") for number in range(3))))
    assert (await store.delete_run_step(DEFAULT_TENANT, "run")).num_observations == 2
    await store.append(_measured(_observation("late"), _observation("other", run_id="other")))
    assert await _delete_run(store, "run") == (2, True)
    assert await store.observation(DEFAULT_TENANT, "late") is None
    assert await _usage(url) == await _recounted(url)


async def test_conversations_of_a_deleted_run_count_no_more(
    store: SqlObservationStore, url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_deletion, "MAX_STEP", 2)
    mine = [_observation(f"{number}", conversation=_conversation(f"c{number}", 0.5)) for number in range(5)]
    kept = _observation("kept", run_id="kept", conversation=_conversation("c1", 0.5))
    await store.append(_measured(*mine, kept))
    assert (await _report(store, Configuration())).estimates["conversation_relevance"].count == 6
    assert await _delete_run(store, "run") == (5, True)
    for scope in (Configuration(), "kept"):
        assert (await _report(store, scope)).estimates["conversation_relevance"].count == 1
    assert await _usage(url) == await _recounted(url)


async def test_queries_and_conversations_count_for_as_long_as_they_stay(url: URL, clock: Clock) -> None:
    """Deleted observations leave them behind, without end: so they fill what their tenant may keep."""
    store = SqlObservationStore(url, clock=clock, quotas=Quotas(bytes=20_000))
    await store.open()

    async def stored(number: int, name: str) -> list[bool | None]:
        found = [
            _answered(f"{number}{kind}", 1.0, query_id=query, conversation=_conversation(conversation, 1.0))
            for kind, query, conversation in (("a", "q", name), ("b", name, "c"))
        ]
        bare = replace(_observation(f"{number}c"), labels=Labels())
        return list(await store.append(_measured(*found, bare)))

    async def kept_of_deleted() -> int:
        clock.now_us += 1
        assert await store.delete_before(clock.now_us) == 3
        ((num_bytes, *_),) = (await _usage(url)).values()
        return num_bytes

    try:
        # A query and a conversation more each time, beside two that are always the same.
        for number in range(8):
            assert await stored(number, f"n{number}") == [True] * 3
            assert await _usage(url) == await _recounted(url)
            assert await kept_of_deleted() == 512 * (2 + 2 * (number + 1))
        assert await stored(8, "n0") == [True] * 3
        assert await kept_of_deleted() == 512 * (2 + 2 * 8)
        for number in range(9, 16):
            assert await stored(number, f"n{number}") == [True] * 3
            await kept_of_deleted()
        # 32 of them take 16,384 bytes, and three observations more than what is left.
        assert await stored(16, "n16") == [True, None, None]
    finally:
        await store.close()


async def _usage(url: URL) -> dict[str, tuple[int, ...]]:
    """Read what the store has counted."""
    return await _rows(url, "SELECT tenant, num_bytes, num_runs, num_configurations FROM tenant_usage")


async def _recounted(url: URL) -> dict[str, tuple[int, ...]]:
    """Count what there is."""
    return await _rows(
        url,
        """
        SELECT tenant,
            SUM(LENGTH(payload) + 1024)
                + 256 * (SELECT COUNT(*) FROM provider_days WHERE provider_days.tenant = observations.tenant)
                + 512 * (SELECT COUNT(*) FROM peaks WHERE peaks.tenant = observations.tenant)
                + 512 * (SELECT COUNT(*) FROM conversations WHERE conversations.tenant = observations.tenant),
            (SELECT COUNT(*) FROM scopes WHERE scopes.tenant = observations.tenant AND kind = 0),
            (SELECT COUNT(*) FROM scopes WHERE scopes.tenant = observations.tenant AND kind = 1)
        FROM observations GROUP BY tenant
        """,
    )


async def _rows(url: URL, query: str) -> dict[str, tuple[int, ...]]:
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return {tenant: tuple(map(int, row)) for tenant, *row in await connection.execute(text(query))}
    finally:
        await engine.dispose()


async def test_many_runs_in_one_batch(store: SqlObservationStore) -> None:
    observations = [_observation(str(i), run_id=f"run-{i % 500}") for i in range(1000)]
    assert all(await store.append(_measured(*observations)))
    assert (await _report(store, "run-499")).num_observations == 2


async def test_an_unknown_run_has_no_report(store: SqlObservationStore) -> None:
    assert await store.totals(DEFAULT_TENANT, "nothing", Window.ALL) is None
    assert await store.totals(DEFAULT_TENANT, Configuration(), Window.ALL) is None
    assert list(await store.measurements(DEFAULT_TENANT, "nothing", after=-1, limit=1)) == []


async def test_a_batch_is_stored_whole_or_not_at_all(store: SqlObservationStore) -> None:
    good, bad = _observation("1"), _observation("2")
    # No database takes a run without a name; the batch must leave no trace.
    impossible: Sequence[Any] = [(good, measure(good)), (_observation("2", run_id=None), measure(bad))]
    with pytest.raises(Unavailable):
        await store.append(impossible)
    assert await store.totals(DEFAULT_TENANT, "run", Window.ALL) is None
    assert list(await store.append(_measured(good))) == [True]


def _answered(id_: str, utility: float, *, run_id: str = "run", **changes: Any) -> Observation:
    """One sample, answered so that token F1 against "w1 w2" is the utility: two, one or no word of it."""
    words = {1.0: "w1 w2", 0.5: "w1 w3", 0.0: "other"}[utility]
    settings: dict[str, Any] = {
        "shown": np.array([[0, 1]]),
        "answers": (SampledAnswer(words, (0,)),),
        "labels": Labels(references=("w1 w2",)),
    }
    return _observation(id_, run_id=run_id, **(settings | changes))


async def test_windows_move_with_the_clock_and_all_never_changes(
    url: URL, store: SqlObservationStore, clock: Clock
) -> None:
    ages = [0, 1, 59, 60, 64, 65, 66, 120, 12 * 60 - 1, 12 * 60, 23 * 60, 24 * 60, 25 * 60, 40 * 60, 400 * 60]
    observations = [
        _observation(
            str(age), observed_at_us=NOON_US - age * MINUTE_US, stage_ms={Stage.RETRIEVE: float(age)}
        )
        for age in ages
    ]
    await store.append(_measured(*observations))
    everything = await _report(store)
    for moved in (0, 1, 61, 13 * 60, 24 * 60, 48 * 60):
        clock.now_us = NOON_US + moved * MINUTE_US
        # An observation of another run and of this makes the store tidy up.
        await store.append(
            _measured(_observation(f"tick-{moved}", run_id="other", observed_at_us=clock.now_us))
        )
        late = _observation(f"late-{moved}", observed_at_us=NOON_US - 400 * 60 * MINUTE_US, stage_ms={})
        await store.append(_measured(late))
        hour = await _report(store, window=Window.HOUR)
        day = await _report(store, window=Window.DAY)
        in_hour = [age for age in ages if age + moved <= 59]
        # Noon is the first minute of its hour; of a day there are this hour and the 23 before it.
        in_day = [age for age in ages if age <= 23 * 60 - moved // 60 * 60]
        assert hour.num_observations == len(in_hour)
        assert day.num_observations == len(in_day)
        if in_hour:
            assert hour.stages[Stage.RETRIEVE].mean == pytest.approx(sum(in_hour) / len(in_hour))
        if in_day:
            assert day.started_at_us == NOON_US - max(in_day) * MINUTE_US
            assert day.passages[0].exposure == pytest.approx(len(in_day))
        else:
            assert (day.started_at_us, day.passages) == (None, [])
        now = await _report(store)
        assert now.num_observations == len(ages) + [0, 1, 61, 780, 1440, 2880].index(moved) + 1
        assert now.stages[Stage.RETRIEVE].count == len(ages)
        assert now.stages[Stage.RETRIEVE].mean == pytest.approx(everything.stages[Stage.RETRIEVE].mean)
        assert now.stages[Stage.RETRIEVE].high == pytest.approx(everything.stages[Stage.RETRIEVE].high)


async def test_what_claims_to_come_from_the_future_counts_as_now(store: SqlObservationStore) -> None:
    await store.append(_measured(_observation("1", observed_at_us=NOON_US + 10 * HOUR_US)))
    report = await _report(store, window=Window.HOUR)
    assert (report.num_observations, report.updated_at_us) == (1, NOON_US + 10 * HOUR_US)


def _numbers(report: RunReport) -> list[float]:
    """Every number of a report, in one order."""
    estimates = [*report.estimates.values(), *(report.stages[stage] for stage in sorted(report.stages))]
    for shares in (report.providers, report.passages):
        for share in sorted(shares, key=lambda one: one.name):
            estimates.append(share.per_observation)
    numbers = [float(report.num_observations), float(report.num_rankings), float(report.num_unanswered)]
    for one in estimates:
        numbers += [
            one.count,
            one.undefined,
            *(float("nan") if x is None else x for x in (one.mean, one.low, one.high)),
        ]
    for shares in (report.providers, report.passages):
        numbers += [
            x for s in sorted(shares, key=lambda one: one.name) for x in (s.exposure, s.share, s.target or 0)
        ]
    return [*numbers, *(count for _, _, count in report.degradations)]


def _many(seed: int, count: int) -> list[Observation]:
    rng = np.random.default_rng(seed)
    return [
        _answered(
            f"{i:03}",
            [0.0, 0.5, 1.0][rng.integers(3)],
            run_id=f"run-{rng.integers(2)}",
            query_id=f"q-{rng.integers(5)}",
            configuration=Configuration("c", "bm25", "none", "t5", float(rng.integers(2))),
            observed_at_us=NOON_US - int(rng.integers(0, 30 * HOUR_US)),
            shown=rng.permuted(np.tile(np.arange(3), (1, 1)), axis=1)[:, :2],
            stage_ms={Stage.GENERATE: float(rng.exponential(100))},
            degradations=((Stage.RERANK, "BUDGET_EXCEEDED"),) * int(rng.integers(2)),
            conversation=_conversation(f"c-{rng.integers(4)}", float(rng.random()))
            if rng.random() < 0.4
            else None,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_order_batches_and_restarts_do_not_matter(
    url: URL, clock: Clock, tmp_path: Path, seed: int
) -> None:
    observations = _many(seed, 100)
    scopes: list[Scope] = [
        "run-0",
        "run-1",
        *(Configuration("c", "bm25", "none", "t5", float(a)) for a in (0, 1)),
    ]

    async def reports(target: URL, groups: Sequence[Sequence[Observation]]) -> list[list[float]]:
        store = SqlObservationStore(target, clock=clock)
        await store.open()
        for number, group in enumerate(groups):
            if number % 20 == 10:
                await store.close()
                store = SqlObservationStore(target, clock=clock)
                await store.open()
            await store.append(_measured(*group))
        found = [_numbers(await _report(store, scope, window)) for scope in scopes for window in Window]
        await store.close()
        return found

    rng = np.random.default_rng(seed)
    shuffled = [observations[i] for i in rng.permutation(len(observations))]
    cuts = np.sort(rng.integers(0, len(shuffled), 70))
    pieces = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(shuffled)], strict=True) if a < b]
    once = URL.create("sqlite+aiosqlite", database=str(tmp_path / "once.db"))
    for ours, expected in zip(await reports(url, pieces), await reports(once, [observations]), strict=True):
        assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


async def test_a_configuration_is_reported_over_all_runs(store: SqlObservationStore) -> None:
    low, high = (Configuration("c", "bm25", "none", "t5", alpha) for alpha in (1.0, 8.0))
    await store.append(
        _measured(
            _answered("1", 1.0, run_id="a", configuration=low),
            _answered("2", 0.0, run_id="b", configuration=low),
            _answered("3", 0.0, run_id="b", configuration=high),
            _answered("4", 0.0, run_id="b", configuration=Configuration("c", "bm25", "none", "t5")),
        )
    )
    assert (await _report(store, low)).estimates["expected_utility"].mean == 0.5
    assert (await _report(store, high)).num_observations == 1
    assert (await _report(store, "b")).num_observations == 3
    listed = await store.configurations(DEFAULT_TENANT, before=None, limit=2)
    assert [one.num_observations for one in listed] == [1, 1]
    rest = await store.configurations(DEFAULT_TENANT, before=listed[-1].sequence, limit=10)
    assert {one.scope for one in [*listed, *rest]} == {low, high, Configuration("c", "bm25", "none", "t5")}
    assert (
        await store.totals(DEFAULT_TENANT, Configuration("c", "bm25", "none", "t5", 2.0), Window.ALL) is None
    )


async def test_a_target_tells_configurations_apart(store: SqlObservationStore) -> None:
    plain = Configuration("c", "bm25", "none", "t5")
    wanted = Configuration("c", "bm25", "none", "t5", None, "disparity 0.3")
    await store.append(
        _measured(
            _observation("1", configuration=plain),
            _observation("2", configuration=wanted),
            _observation("3", configuration=wanted),
        )
    )
    listed = await store.configurations(DEFAULT_TENANT, before=None, limit=10)
    assert {one.scope: one.num_observations for one in listed} == {plain: 1, wanted: 2}
    assert (await _report(store, wanted)).num_observations == 2
    page = await store.measurements(DEFAULT_TENANT, "run", after=-1, limit=10)
    assert [one.configuration for one in page] == [plain, wanted, wanted]


async def test_names_that_could_be_confused_are_not(store: SqlObservationStore) -> None:
    first, second = Configuration('a","b', ""), Configuration("a", "b")
    await store.append(_measured(_observation("1", configuration=first, run_id='["a"]')))
    assert await store.totals(DEFAULT_TENANT, second, Window.ALL) is None
    assert (await store.configurations(DEFAULT_TENANT, before=None, limit=1))[0].scope == first


async def test_u_max_is_over_runs_and_may_rise(store: SqlObservationStore) -> None:
    # Token F1 of "w1 w3" against "w1 w2" is 1/2.
    await store.append(
        _measured(_answered("1", 0.5, run_id="a"), _answered("2", 0.0, run_id="a", query_id="q-2"))
    )
    report = await _report(store, "a")
    estimate = report.estimates[NORMALIZED]
    # The other query's u_max is 0: undefined.
    assert (estimate.mean, estimate.count, estimate.undefined) == (1.0, 1, 1)
    # Another generator's answer does not count, another run's does.
    other = Configuration(generator="other")
    await store.append(_measured(_answered("3", 1.0, run_id="b", configuration=other)))
    assert (await _report(store, "a")).estimates[NORMALIZED].mean == 1.0
    await store.append(_measured(_answered("4", 1.0, run_id="b")))
    assert (await _report(store, "a")).estimates[NORMALIZED].mean == 0.5
    assert (await _report(store, "b")).estimates[NORMALIZED].mean == 1.0
    page = await store.measurements(DEFAULT_TENANT, "a", after=-1, limit=10)
    assert [one.quantities.get(NORMALIZED) for one in page] == [0.5, None]


async def test_measurements_come_in_the_order_of_storing(store: SqlObservationStore) -> None:
    for batch in ((3, 1), (5, 2, 4)):
        of_run = [
            _observation(str(i), observed_at_us=i, configuration=Configuration("c", alpha=2.0)) for i in batch
        ]
        await store.append(_measured(*of_run, _observation(f"other-{batch}", run_id="other")))
    first = await store.measurements(DEFAULT_TENANT, "run", after=-1, limit=2)
    rest = await store.measurements(DEFAULT_TENANT, "run", after=first[-1].sequence, limit=9)
    assert [one.observation_id for one in [*first, *rest]] == ["3", "1", "5", "2", "4"]
    one = first[0]
    assert (one.query_id, one.configuration, one.observed_at_us) == ("q", Configuration("c", alpha=2.0), 3)
    # Contexts {a, b}, {a, c}: EE-D = 1 + 1/4 + 1/4. What is undefined is not there.
    assert one.quantities["ee_d"] == 1.5
    assert "vote_agreement" not in one.quantities


async def test_an_observation_is_read_as_it_was_stored_and_by_its_tenant_alone(
    store: SqlObservationStore,
) -> None:
    await store.append(_measured(replace(_observation("a"), payload=b"as it came")))
    assert await store.observation(DEFAULT_TENANT, "a") == b"as it came"
    assert await store.observation("acme", "a") is None
    assert await store.observation(DEFAULT_TENANT, "b") is None


def _conversation(id_: str, gain: float) -> ObservedConversation:
    # L = 1 and one nugget at the first word: R = 2/(1+1)·1·gain.
    nugget = Nugget(word_count=1, gain=gain, membership={"g": [0.5, 0.5]})
    judged = JudgedConversation(
        turns=[[nugget]], attributes={"g": Attribute([0.5, 0.5], "jsd")}, patience=1, alpha=0.5
    )
    return ObservedConversation(id_, judged)


async def test_a_conversation_counts_as_it_was_last_observed(
    store: SqlObservationStore, clock: Clock
) -> None:
    def turn(id_: str, conversation: str, gain: float, at_us: int, **changes: Any) -> Observation:
        return _observation(
            id_, conversation=_conversation(conversation, gain), observed_at_us=at_us, **changes
        )

    early = NOON_US - 3 * HOUR_US
    await store.append(_measured(turn("1", "c", 0.25, early), turn("2", "c", 0.5, early + 1)))
    await store.append(_measured(turn("0", "c", 1.0, early), turn("4", "d", 1.0, NOON_US)))
    relevance = (await _report(store)).estimates["conversation_relevance"]
    # c as of "2", d as of "4": both of "0" and "1" were earlier.
    assert (relevance.count, relevance.mean) == (2, (0.5 + 1.0) / 2)
    expected = Moments.of([0.5, 1.0]).estimate(low=0.0)
    assert (relevance.low, relevance.high) == pytest.approx((expected.low, expected.high))
    assert (await _report(store, window=Window.HOUR)).estimates["conversation_relevance"].mean == 1.0
    # At the same time the greater id wins, whichever came first; and it may be of another configuration.
    other = Configuration(retriever="dense")
    await store.append(_measured(turn("3", "c", 0.75, early + 1, configuration=other)))
    await store.append(_measured(turn("11", "c", 0.0625, early + 1)))
    assert (await _report(store)).estimates["conversation_relevance"].mean == (0.75 + 1.0) / 2
    assert (await _report(store, other)).estimates["conversation_combined"].mean == 0.5 * 0.75 + 0.5 * 1.0
    assert (await _report(store, Configuration())).estimates["conversation_relevance"].count == 1
    # The same id in another run is another conversation.
    await store.append(_measured(turn("5", "c", 0.0, early, run_id="run-2")))
    assert (await _report(store)).estimates["conversation_relevance"].count == 2


async def test_segments_stay_few(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "observations.db"
    store = SqlObservationStore(URL.create("sqlite+aiosqlite", database=str(path)), clock=clock)
    await store.open()
    for i in range(300):
        clock.now_us = NOON_US + i * MINUTE_US  # a bucket each, rolled up as time goes on
        await store.append(_measured(_observation(str(i), observed_at_us=clock.now_us)))
    report = await _report(store)
    await store.close()
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT scope_id, span, COUNT(*) FROM segments GROUP BY 1, 2").fetchall()
    database.close()
    # Of minutes at most 65; what was hours before at most 7 a level, of hours with 60 each.
    assert max(count for _, span, count in rows if span == 2) <= 65
    assert max(count for _, span, count in rows if span == 1) <= 5 * (7 + 7)
    assert (report.num_observations, report.stages[Stage.RETRIEVE].count) == (300, 300)


VERSION_1 = [
    "CREATE TABLE observations (id VARCHAR(128) NOT NULL PRIMARY KEY, run_id VARCHAR(128) NOT NULL,"
    " stored_at_us BIGINT NOT NULL, payload {blob} NOT NULL)",
    "CREATE TABLE runs (sequence INTEGER PRIMARY KEY, run_id VARCHAR(128) NOT NULL UNIQUE)",
    "CREATE TABLE run_moments (run_id VARCHAR(128) PRIMARY KEY)",
    "CREATE TABLE run_providers (run_id VARCHAR(128) PRIMARY KEY)",
    "CREATE TABLE run_degradations (run_id VARCHAR(128) PRIMARY KEY)",
]
"""The tables of version 1, as far as reading it again depends on them."""


async def _version_1(url: URL, ids: Sequence[str]) -> None:
    engine = create_async_engine(url)
    blob = "BYTEA" if url.get_backend_name() == "postgresql" else "BLOB"
    async with engine.begin() as connection:
        for statement in VERSION_1:
            await connection.execute(text(statement.format(blob=blob)))
        await connection.execute(
            text("INSERT INTO observations VALUES (:id, 'run', 1, :payload)"),
            [{"id": id_, "payload": id_.encode()} for id_ in ids],
        )
    await engine.dispose()


async def test_observations_of_version_1_are_measured_again(url: URL, clock: Clock) -> None:
    if url.database and url.get_backend_name() == "sqlite":
        Path(url.database).parent.mkdir()
    ids = [f"{i:04}" for i in range(1_200)]
    await _version_1(url, ids)
    read = 0

    def remeasure(payload: bytes) -> tuple[Observation, Measurement]:
        nonlocal read
        read += 1
        if read == 700:
            raise Unavailable("TEST", "the machine went down")
        return _measured(_observation(payload.decode()))[0]

    refusing = SqlObservationStore(url, clock=clock)
    with pytest.raises(Unavailable, match="version 1"):
        await refusing.open()
    stopped = SqlObservationStore(url, clock=clock, remeasure=remeasure)
    with pytest.raises(Unavailable, match="went down"):
        await stopped.open()
    for _ in range(2):  # what was stopped is completed, once
        store = SqlObservationStore(url, clock=clock, remeasure=remeasure)
        await store.open()
        report = await _report(store)
        assert (report.num_observations, report.estimates["ee_d"].count) == (1_200, 1_200)
        page = await store.measurements(DEFAULT_TENANT, "run", after=-1, limit=2_000)
        assert [one.observation_id for one in page] == ids
        await store.close()
    assert read == 700 + 1_200


async def test_a_locked_sqlite_says_so(tmp_path: Path) -> None:
    path = tmp_path / "observations.db"
    store = SqlObservationStore(URL.create("sqlite+aiosqlite", database=str(path)), lock_timeout_s=0.5)
    await store.open()
    try:
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable) as caught:
            await store.append(_measured(_observation("1")))
        assert caught.value.reason == "STORE_LOCKED"
        lock.execute("ROLLBACK")
        lock.close()
        assert list(await store.append(_measured(_observation("1")))) == [True]
    finally:
        await store.close()


async def test_a_full_disk_says_so_and_stores_nothing(tmp_path: Path) -> None:
    pages = 100

    def limit(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(Engine, "connect", limit)
    store = SqlObservationStore(URL.create("sqlite+aiosqlite", database=str(tmp_path / "observations.db")))
    try:
        await store.open()
        await store.append(_measured(_observation("1")))
        with pytest.raises(Unavailable) as caught:
            await store.append(_measured(_observation("2"), _observation("3", payload=bytes(500_000))))
        assert caught.value.reason == "STORE_FULL"
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED  # which no channel sends again
        assert (await _report(store)).num_observations == 1
        assert list(await store.append(_measured(_observation("2")))) == [True]
    finally:
        event.remove(Engine, "connect", limit)
        await store.close()


async def test_a_read_only_sqlite_says_so(tmp_path: Path) -> None:
    path = tmp_path / "observations.db"
    store = SqlObservationStore(URL.create("sqlite+aiosqlite", database=str(path)))
    await store.open()
    await store.append(_measured(_observation("1")))
    await store.close()
    read_only = SqlObservationStore(
        URL.create("sqlite+aiosqlite", database=f"file:{path}", query={"mode": "ro", "uri": "true"})
    )
    with pytest.raises(Unavailable) as caught:
        await read_only.open()
    assert caught.value.reason == "STORE_READ_ONLY"


async def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = SqlObservationStore(
        URL.create("sqlite+aiosqlite", database=str(tmp_path / "file" / "observations.db"))
    )
    with pytest.raises(Unavailable, match="cannot make the folder"):
        await store.open()


async def test_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    store = SqlObservationStore(URL.create("sqlite+aiosqlite", database=str(tmp_path / "observations.db")))
    with pytest.raises(Unavailable, match="not open"):
        await store.append(_measured(_observation("1")))
    with pytest.raises(Unavailable, match="not open"):
        await store.runs(DEFAULT_TENANT, before=None, limit=1)
