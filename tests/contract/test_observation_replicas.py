"""Several evaluators on one PostgreSQL: together they are one store, whichever of them is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import URL, Executable, column, make_url, select, table, text, update
from sqlalchemy.ext.asyncio import create_async_engine

from evenmesh.wire.errors import Unavailable
from evenmesh_evaluator.backends.schema import SCHEMA
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import Configuration, Observation, Scope, Window
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_kit.storage import sql
from tests.contract.test_observation_store import (
    DAY,
    HOUR_US,
    MINUTE_US,
    NOON_US,
    Clock,
    _many,
    _measured,
    _numbers,
    _observation,
    _report,
)
from tests.contract.test_schemas import _evaluator, _load
from tests.support.postgres import Postgres
from tests.support.waiting import until

CONFIGURATIONS = [Configuration("c", "bm25", "none", "t5", float(alpha)) for alpha in (0, 1)]
SCOPES: list[Scope] = ["run-0", "run-1", *CONFIGURATIONS]


@pytest.fixture
def url(postgres: Postgres) -> URL:
    """An empty database."""
    postgres.empty()
    return make_url(postgres.url)


@asynccontextmanager
async def _stores(url: URL, *clocks: Clock) -> AsyncIterator[list[SqlObservationStore]]:
    async with AsyncExitStack() as stack:
        stores = [SqlObservationStore(url, clock=clock) for clock in clocks]
        for store in stores:
            stack.push_async_callback(store.close)
        await asyncio.gather(*(store.open() for store in stores))
        yield stores


async def _execute(url: URL, statement: str | Executable) -> Any:
    writes = {"server_settings": {"default_transaction_read_only": "off"}}
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", connect_args=writes)
    try:
        async with engine.connect() as connection:
            found = await connection.execute(text(statement) if isinstance(statement, str) else statement)
            return found.all() if found.returns_rows else None
    finally:
        await engine.dispose()


def _balanced(seed: int, count: int) -> list[Observation]:
    rng = np.random.default_rng(seed)
    made = _many(seed, count)
    return [replace(one, merit_shares=rng.dirichlet(np.ones(3))) for one in made]


def _batches(items: Sequence[Observation], rng: np.random.Generator) -> list[list[Observation]]:
    """All of them in an order of their own, cut into batches of their own, a few twice."""
    order = [*rng.permutation(len(items)), *rng.integers(0, len(items), len(items) // 10)]
    cuts = np.sort(rng.integers(0, len(order), len(order) // 8))
    ends = zip([0, *cuts], [*cuts, len(order)], strict=True)
    return [[items[i] for i in order[a:b]] for a, b in ends if a < b]


async def _answers(store: SqlObservationStore) -> dict[str, Any]:
    """What a store answers to every question that there is."""
    runs = await store.runs(DEFAULT_TENANT, before=None, limit=9)
    configurations = await store.configurations(DEFAULT_TENANT, before=None, limit=9)
    days = {"first_day": DAY - 3, "last_day": DAY}
    return {
        "reports": [_numbers(await _report(store, scope, window)) for scope in SCOPES for window in Window],
        "runs": runs,
        "configurations": configurations,
        "days": [await store.provider_days(DEFAULT_TENANT, name, **days) for name in ("P", "Q")],
        "balance": await store.balance(DEFAULT_TENANT, "c", half_life_days=2, limit=9),
        "measurements": [
            await store.measurements(DEFAULT_TENANT, run, after=-1, limit=1000) for run in ("run-0", "run-1")
        ],
    }


def _anyhow(answered: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """The same without what depends on who came first: numbers of runs, and orders. Sums are last, as numbers."""
    numbers = [number for report in answered["reports"] for number in report]
    scopes = {
        kind: sorted(
            (str(one.scope), one.num_observations, one.started_at_us, one.updated_at_us)
            for one in answered[kind]
        )
        for kind in ("runs", "configurations")
    }
    days = []
    for of in answered["days"]:
        for one in sorted(of, key=lambda one: (str(one.configuration), one.day)):
            days.append((one.configuration, one.day, one.num_found, one.num_shown, one.num_targeted))
            numbers += [one.exposure, one.exposure_squares, one.target, one.owed_squares]
    for one in answered["balance"]:
        numbers += [one.target, one.exposure]
    measured = sorted(
        (one.observation_id, str(one.configuration), sorted(one.quantities.items()))
        for run in answered["measurements"]
        for one in run
    )
    return {**scopes, "days": days, "measured": measured}, numbers


async def test_they_start_at_once_on_an_empty_database(url: URL) -> None:
    async with _stores(url, *(Clock() for _ in range(4))) as stores:
        answered = [list(await store.append(_measured(_observation("1")))) for store in stores]
        assert answered == [[True], [False], [False], [False]]


@pytest.mark.parametrize("name", ["evaluator-1", "evaluator-2"])
async def test_they_start_at_once_on_a_database_of_an_earlier_version(url: URL, name: str) -> None:
    _load(url, name)
    stores = [_evaluator(url) for _ in range(3)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        assert [(await _report(store)).num_observations for store in stores] == [3, 3, 3]
        assert await _execute(url, "SELECT num_runs, num_configurations FROM tenant_usage") == [(1, 1)]
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("seed", range(2))
async def test_they_are_one_store(url: URL, tmp_path: Path, seed: int) -> None:
    """All get all observations at once, in orders and batches of their own, and with clocks that differ."""
    rng = np.random.default_rng(seed)
    observations = _balanced(seed, 120)
    clocks = [Clock(NOON_US + int(rng.integers(-4, 5)) * MINUTE_US) for _ in range(3)]

    async def send(store: SqlObservationStore, clock: Clock, batches: Sequence[list[Observation]]) -> int:
        new = 0
        for number, batch in enumerate(batches):
            clock.now_us += 20 * 10**6  # minutes pass, and each of them tidies up by its own clock
            new += sum(map(bool, await store.append(_measured(*batch))))
            if number % 5 == 0:  # reports are read meanwhile, and cached
                await store.totals(DEFAULT_TENANT, SCOPES[number % len(SCOPES)], Window.ALL)
        return new

    once = URL.create("sqlite+aiosqlite", database=str(tmp_path / "once.db"))
    async with _stores(url, *clocks) as stores, _stores(once, Clock(NOON_US - HOUR_US)) as (alone,):
        sent = [send(*one, _batches(observations, rng)) for one in zip(stores, clocks, strict=True)]
        assert sum(await asyncio.gather(*sent)) == len(observations)
        await alone.append(_measured(*observations))
        alone._clock = lambda: NOON_US + HOUR_US
        for clock in clocks:
            clock.now_us = NOON_US + HOUR_US
        first, *others = [await _answers(store) for store in stores]
        for other in others:
            reports = other.pop("reports")
            assert other == {key: first[key] for key in other}
            # Sums that each of them keeps were added up in other orders.
            for ours, theirs in zip(reports, first["reports"], strict=True):
                assert ours == pytest.approx(theirs, nan_ok=True, rel=1e-12)
        (exact, sums), (exact_alone, sums_alone) = _anyhow(first), _anyhow(await _answers(alone))
        assert exact == exact_alone
        assert sums == pytest.approx(sums_alone, nan_ok=True, rel=1e-9, abs=1e-9)

        # What one forgets or is answered later, all know.
        assert await stores[0].reset_balance(DEFAULT_TENANT, "c") == 2
        late = replace(observations[0], id="late", observed_at_us=NOON_US)
        await stores[1].append(_measured(late))
        balances = [await store.balance(DEFAULT_TENANT, "c", half_life_days=2, limit=9) for store in stores]
        assert balances[0] == balances[1] == balances[2]
        assert sum(one.exposure for one in balances[0]) <= 1
        counts = [(await _report(store, CONFIGURATIONS[0])).num_observations for store in stores]
        assert len(set(counts)) == 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_servers_default_isolation_does_not_matter(url: URL, isolation: str) -> None:
    await _execute(url, f"ALTER DATABASE postgres SET default_transaction_isolation = '{isolation}'")
    try:
        async with _stores(url, Clock(), Clock()) as stores:
            batches = [[_observation(f"{i}"), _observation(f"{i + 1}")] for i in range(20)]
            sent = [store.append(_measured(*batch)) for batch in batches for store in stores]
            answered = await asyncio.gather(*sent)
            assert sum(sum(map(bool, one)) for one in answered) == 21
            assert [(await _report(store)).num_observations for store in stores] == [21, 21]
    finally:
        await _execute(url, "ALTER DATABASE postgres RESET default_transaction_isolation")


async def test_a_database_that_was_read_only_for_a_while_is_written_again(url: URL) -> None:
    """A session keeps the default that it began with, so a connection of that while must not serve again."""
    async with _stores(url, Clock()) as (store,):
        await store.append(_measured(_observation("before")))
        try:
            await _execute(url, "ALTER DATABASE postgres SET default_transaction_read_only = on")
            others = "FROM pg_stat_activity WHERE datname = 'postgres' AND pid <> pg_backend_pid()"
            await _execute(url, f"SELECT pg_terminate_backend(pid) {others}")
            with pytest.raises(Unavailable, match="cannot be written"):
                await store.append(_measured(_observation("meanwhile")))
            assert (await _report(store)).num_observations == 1
        finally:
            await _execute(url, "ALTER DATABASE postgres RESET default_transaction_read_only")
        with suppress(Unavailable):  # it may use a connection that a read has opened meanwhile
            await store.append(_measured(_observation("after")))
        await store.append(_measured(_observation("after")))
        assert (await _report(store)).num_observations == 2


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Shortens a time of the database within a block; who began before or begins after has its usual time."""

    @asynccontextmanager
    async def shortened(name: str, seconds: float) -> AsyncIterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(sql, name, seconds)
            yield

    return shortened


async def test_one_that_stops_while_it_writes_does_not_stop_the_others(url: URL, quick: Any) -> None:
    """As a process that is frozen, or whose machine is gone: nobody closes its connection."""
    async with _stores(url, Clock(), Clock()) as (frozen, other):
        await other.append(_measured(_observation("0")))
        with pytest.raises(Unavailable) as caught:
            async with AsyncExitStack() as stack:
                async with quick("_IDLE_S", 0.2):
                    connection = await stack.enter_async_context(frozen._database.write())
                await connection.execute(text("UPDATE tenant_usage SET num_runs = 99"))
                assert list(await other.append(_measured(_observation("1")))) == [True]
        assert caught.value.reason == "STORE_UNAVAILABLE"
        assert list(await frozen.append(_measured(_observation("2")))) == [True]
        assert await _execute(url, "SELECT num_runs FROM tenant_usage") == [(1,)]


async def test_one_that_waits_for_too_long_says_so_and_may_try_again(url: URL, quick: Any) -> None:
    async with _stores(url, Clock(), Clock()) as (slow, other):
        async with slow._database.write(), quick("_WAIT_S", 0.1):
            with pytest.raises(Unavailable) as caught:
                await other.append(_measured(_observation("1")))
        assert caught.value.reason == "STORE_LOCKED"
        assert list(await other.append(_measured(_observation("1")))) == [True]


async def test_one_that_starts_waits_for_one_that_migrates(
    url: URL, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    transaction = sql.SqlDatabase._transaction

    def counted(self: sql.SqlDatabase) -> Any:
        nonlocal tries
        tries += 1
        return transaction(self)

    async with _stores(url, Clock()) as (migrating,), quick("_WAIT_S", 0.1):
        starting = SqlObservationStore(url, clock=Clock())
        async with migrating._database.write():
            monkeypatch.setattr(sql.SqlDatabase, "_transaction", counted)
            opened = asyncio.create_task(starting.open())
            await until(lambda: tries >= 3)
            assert not opened.done()
        monkeypatch.undo()
        try:
            await opened
            assert list(await starting.append(_measured(_observation("1")))) == [True]
        finally:
            await starting.close()


async def test_one_of_an_earlier_version_writes_no_more_when_another_has_migrated(url: URL) -> None:
    """It would not count what the later schema counts; a rollout replaces it, and observations wait meanwhile."""
    async with _stores(url, Clock()) as (earlier,):
        await earlier.append(_measured(_observation("1")))
        version = table(SCHEMA.version_table, column("version_num"))
        ((now,),) = await _execute(url, select(version.c.version_num))
        await _execute(url, update(version).values(version_num="later"))
        with pytest.raises(Unavailable, match="another version of evenmesh has migrated it") as caught:
            await earlier.append(_measured(_observation("2")))
        assert caught.value.reason == "STORE_VERSION"
        assert (await _report(earlier)).num_observations == 1
        await _execute(url, update(version).values(version_num=now))
        assert list(await earlier.append(_measured(_observation("2")))) == [True]
