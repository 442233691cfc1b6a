"""What configurations showed of providers, day by day, in the SQL store."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from sqlalchemy import and_, case, delete, distinct, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_core.exposure_balance import fading
from evenmesh_evaluator.backends.sql_tables import PROVIDER_COUNTS, PROVIDER_DAYS, PROVIDER_SUMS, SCOPES
from evenmesh_evaluator.domain import Configuration, Measurement, Observation, ProviderBalance, ProviderDay
from evenmesh_kit.storage.sql import SqlDatabase

DAY_US: Final = 24 * 60 * 60 * 10**6
"""Length of a day. Microseconds."""
MAX_DAYS: Final = 50_000
"""Most days and configurations of a provider that one statement reads."""

_C: Final = PROVIDER_DAYS.c
_KEY: Final = ("tenant", "provider", "day", "configuration_id")
_NUMBERS: Final = (*PROVIDER_COUNTS, *PROVIDER_SUMS)
_READ: Final = (*PROVIDER_COUNTS, *PROVIDER_SUMS[:-2])


def upsert(database: SqlDatabase) -> Any:
    """Return the statement that adds rows of :func:`rows` to those that are there; see :func:`add`."""
    statement = database.insert(PROVIDER_DAYS)
    return statement.on_conflict_do_update(
        index_elements=list(_KEY),
        set_={name: _C[name] + statement.excluded[name] for name in _NUMBERS},
    ).returning(*(_C[name] for name in _KEY), _C.num_found)


async def add(connection: AsyncConnection, upsert: Any, given: Sequence[dict[str, Any]]) -> Counter[str]:
    """Add rows of :func:`rows` to those that are there, and return by tenant how many were not."""
    # A row that was there has found its provider more often than the one that is added.
    found = {tuple(one[name] for name in _KEY): one["num_found"] for one in given}
    stored = await connection.execute(upsert, given)
    return Counter(key[0] for *key, number in stored if number == found[tuple(key)])


def rows(
    items: Iterable[tuple[Observation, Measurement, int]], now_us: int, *, first_day: int
) -> list[dict[str, Any]]:
    """Return the rows that new observations add to, sorted by key.

    Args:
        items: observations, what was measured of them, and the id of their configuration.
        now_us: the time now, which is the latest that an observation counts for. Microseconds since 1970.
        first_day: days before this one are not kept.
    """
    found: dict[tuple[str, str, int, int], dict[str, Any]] = {}
    for observation, measurement, configuration_id in items:
        provided = measurement.provided
        day = min(observation.observed_at_us, now_us) // DAY_US
        if provided is None or day < first_day:
            continue
        known = provided.target is not None
        exposure = provided.exposure
        target = np.zeros_like(exposure) if provided.target is None else provided.target
        columns: dict[str, Any] = {
            "num_shown": provided.shown,
            "num_cited": provided.cited,
            "exposure": exposure,
            "exposure_squares": exposure**2,
            "target": target,
            "target_squares": target**2,
            "owed_squares": (target - exposure) ** 2 * known,
            "exposure_targeted": exposure * known,
            "balance_target": target,
            "balance_exposure": exposure * known,
        }
        listed = {name: values.tolist() for name, values in columns.items()}
        for place, name in enumerate(provided.names):
            key = (observation.tenant, name, day, configuration_id)
            row = found.get(key)
            if row is None:
                row = found[key] = {
                    "tenant": observation.tenant,
                    "provider": name,
                    "day": day,
                    "configuration_id": configuration_id,
                    "collection": observation.configuration.collection,
                    **dict.fromkeys(PROVIDER_COUNTS, 0),
                    **dict.fromkeys(PROVIDER_SUMS, 0.0),
                }
            row["num_found"] += 1
            row["num_targeted"] += int(known)
            for column, values in listed.items():
                row[column] += values[place]
    return [found[key] for key in sorted(found)]


async def days(
    connection: AsyncConnection, tenant: str, provider: str, first_day: int, last_day: int
) -> Sequence[ProviderDay]:
    """Return what a provider's days hold, by configuration and day, the configurations in order of age.

    These are at most one more than :data:`MAX_DAYS`, which says that there are too many.
    """
    query = (
        select(SCOPES.c.key, _C.day, *(_C[name] for name in _READ))
        .select_from(PROVIDER_DAYS.join(SCOPES, SCOPES.c.id == _C.configuration_id))
        .where(_C.tenant == tenant, _C.provider == provider, _C.day >= first_day, _C.day <= last_day)
        .order_by(_C.configuration_id, _C.day)
        .limit(MAX_DAYS + 1)
    )
    configurations: dict[str, Configuration] = {}
    found = []
    for key, day, *numbers in await connection.execute(query):
        if key not in configurations:
            configurations[key] = Configuration(*json.loads(key))
        found.append(ProviderDay(configurations[key], day, **dict(zip(_READ, numbers, strict=True))))
    return found


async def balance(
    connection: AsyncConnection, tenant: str, collection: str, *, today: float, half_life: float, limit: int
) -> Sequence[ProviderBalance]:
    """Return what the providers of a collection deserved and were given, those furthest apart first.

    Args:
        connection: of a transaction.
        tenant: owner of the collection.
        collection: its name.
        today: the time now, in days since 1970; a day counts from its middle.
        half_life: in days; what is older than 30 of it, a billionth, is left out.
        limit: most providers.
    """
    first, last = int(today - 30 * half_life), math.floor(today - 0.5)
    here = and_(
        _C.tenant == tenant,
        _C.collection == collection,
        _C.day >= first,
        or_(_C.balance_target > 0, _C.balance_exposure > 0),
    )
    # The database adds up: a collection can have millions of days of providers. What is left after a number
    # of days is the product of what is left after whole blocks of them, after the rest, and since the last.
    block = math.isqrt(max(0, last - first)) + 1
    blocks = {at: float(fading(at * block, half_life)) for at in range((last - first) // block + 1)}
    within = {at: float(fading(at, half_life)) for at in range(block)}
    age = last - _C.day
    old = case(blocks, value=age // block) * case(within, value=age % block) if blocks else 0.0
    factor = case((_C.day > last, 1.0), else_=old * float(fading(today - 0.5 - last, half_life)))
    target, exposure = func.sum(_C.balance_target * factor), func.sum(_C.balance_exposure * factor)
    query = (
        select(_C.provider, target, exposure)
        .where(here)
        .group_by(_C.provider)
        .order_by(func.abs(target - exposure).desc(), _C.provider)
        .limit(limit)
    )
    found = [ProviderBalance(*row) for row in await connection.execute(query)]
    return sorted(found, key=lambda one: (-abs(one.target - one.exposure), one.provider))


async def reset(connection: AsyncConnection, tenant: str, collection: str) -> int:
    """Forget the balance of a collection, and return of how many providers."""
    here = and_(
        _C.tenant == tenant,
        _C.collection == collection,
        or_(_C.balance_target > 0, _C.balance_exposure > 0),
    )
    count = await connection.scalar(select(func.count(distinct(_C.provider))).where(here)) or 0
    await connection.execute(
        update(PROVIDER_DAYS).where(here).values(balance_target=0.0, balance_exposure=0.0)
    )
    return int(count)


async def drop_before(connection: AsyncConnection, first_day: int) -> Counter[str]:
    """Delete the days before ``first_day``, and return by tenant how many rows they were."""
    count = select(_C.tenant, func.count()).where(_C.day < first_day).group_by(_C.tenant)
    dropped: Counter[str] = Counter()
    for tenant, number in await connection.execute(count):
        dropped[tenant] = number
    if dropped:
        await connection.execute(delete(PROVIDER_DAYS).where(_C.day < first_day))
    return dropped
