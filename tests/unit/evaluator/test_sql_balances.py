"""Balances that the database adds up are those of the formula, however many days there are."""

from __future__ import annotations

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import create_async_engine

from evenmesh_evaluator.backends.sql_providers import balance
from evenmesh_evaluator.backends.sql_tables import PROVIDER_DAYS

TODAY = 20_000.75


@pytest.mark.parametrize("half_life", [0.01, 1.0, 7.0, 365.0])
async def test_what_is_left_of_each_day_is_that_of_its_age(half_life: float) -> None:
    # Every day of three years, some of long before, today, and two that a clock of another machine is ahead.
    days = [*range(18_900, 20_003), 15_000, 12_345, 1]
    rows = [
        {
            "tenant": "t",
            "collection": "c",
            "provider": "p",
            "configuration": "",
            "day": day,
            "balance_target": 1.0 + day % 7,
            "balance_exposure": 0.5 * (day % 3),
        }
        for day in days
    ]
    known = {one.name: 0 for one in PROVIDER_DAYS.columns if not one.nullable and one.default is None}
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(PROVIDER_DAYS.create)
        await connection.execute(insert(PROVIDER_DAYS), [{**known, **row} for row in rows])
        (found,) = await balance(connection, "t", "c", today=TODAY, half_life=half_life, limit=5)
    await engine.dispose()

    kept = {one["day"]: 2 ** (-max(0.0, TODAY - one["day"] - 0.5) / half_life) for one in rows}
    assert found.target == pytest.approx(sum(kept[day] * (1.0 + day % 7) for day in days), rel=1e-7)
    assert found.exposure == pytest.approx(sum(kept[day] * 0.5 * (day % 3) for day in days), rel=1e-7)
