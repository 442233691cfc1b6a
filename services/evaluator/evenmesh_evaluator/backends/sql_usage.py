"""What each tenant keeps in the SQL store, and which observations are more than it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_evaluator.backends.sql_tables import OBSERVATIONS, SCOPES, USAGE
from evenmesh_evaluator.domain import Observation, Quotas
from evenmesh_kit.storage.sql import chunks

ROW_BYTES: Final = 1_024
"""What an observation takes beside its payload, about. Bytes."""

PROVIDER_BYTES: Final = 256
"""What a day of a provider takes, about. Bytes."""

KEPT_BYTES: Final = 512
"""What stays of a query with answers that are scored, and of a conversation, about, when their observations
are deleted. Bytes."""

_COUNTED: Final = ("num_bytes", "num_runs", "num_configurations")


class OverQuota(Exception):  # noqa: N818 - an outcome that the store handles itself
    """Raised when tenants would keep more than they may.

    Attributes:
        tenants: their names.
    """

    def __init__(self, tenants: Collection[str]) -> None:
        super().__init__(*tenants)
        self.tenants = frozenset(tenants)


@dataclass(frozen=True, slots=True)
class Entry:
    """An observation with the keys of its run and its configuration."""

    observation: Observation
    run: str
    configuration: str

    @property
    def most(self) -> int:
        """What it takes at most: what it shares with others may be there already. Bytes."""
        one = self.observation
        days = len(set(one.providers) - {""})
        kept = bool(one.labels.references and one.answers) + (one.conversation is not None)
        return ROW_BYTES + len(one.payload) + days * PROVIDER_BYTES + kept * KEPT_BYTES


async def over(
    connection: AsyncConnection, entries: Sequence[Entry], quotas: Quotas, kinds: tuple[int, int]
) -> set[tuple[str, str]]:
    """Return tenants and ids of the new observations that are more than their tenants may keep.

    Args:
        connection: of the transaction that stores the others.
        entries: observations with different ids.
        quotas: what a tenant may keep.
        kinds: of runs and of configurations.
    """
    by_tenant: dict[str, list[Entry]] = {}
    for entry in entries:
        by_tenant.setdefault(entry.observation.tenant, []).append(entry)
    used: dict[str, tuple[int, ...]] = {}
    for part in chunks(list(by_tenant)):
        for row in await connection.execute(select(USAGE).where(USAGE.c.tenant.in_(part))):
            used[row.tenant] = (row.num_bytes, row.num_runs, row.num_configurations)
    refused: set[tuple[str, str]] = set()
    most = (quotas.bytes, quotas.runs, quotas.configurations)
    for tenant, mine in by_tenant.items():
        held = used.get(tenant, (0, 0, 0))
        added = (
            sum(entry.most for entry in mine),
            len({entry.run for entry in mine}),
            len({entry.configuration for entry in mine}),
        )
        if all(have + more <= limit for have, more, limit in zip(held, added, most, strict=True)):
            continue
        refused |= await _refused(
            connection, tenant, mine, Counter(dict(zip(_COUNTED, held, strict=True))), most, kinds
        )
    return refused


async def add(
    connection: AsyncConnection, upsert: Any, added: Mapping[str, Mapping[str, int]], quotas: Quotas | None
) -> None:
    """Count what tenants keep more.

    Args:
        connection: of the transaction that stores it, the only one that writes.
        upsert: adds to the rows of :data:`USAGE` and returns them.
        added: by tenant, the columns of :data:`USAGE`.
        quotas: what a tenant may keep; None for any amount.

    Raises:
        OverQuota: a tenant keeps more now; the transaction must be undone.
    """
    rows = await connection.execute(
        upsert,
        [
            {"tenant": tenant, **{name: added[tenant].get(name, 0) for name in _COUNTED}}
            for tenant in sorted(added)  # always in this order, so that writers do not wait for each other
        ],
    )
    if quotas is None:
        return
    tenants = {
        row.tenant
        for row in rows
        if row.num_bytes > quotas.bytes
        or row.num_runs > quotas.runs
        or row.num_configurations > quotas.configurations
    }
    if tenants:
        raise OverQuota(tenants)


async def _refused(
    connection: AsyncConnection,
    tenant: str,
    entries: Sequence[Entry],
    held: Counter[str],
    most: tuple[int, int, int],
    kinds: tuple[int, int],
) -> set[tuple[str, str]]:
    of = OBSERVATIONS.c.tenant == tenant
    ids = await _known(connection, OBSERVATIONS.c.id, of, [one.observation.id for one in entries])
    of_runs, of_configurations = (and_(SCOPES.c.tenant == tenant, SCOPES.c.kind == kind) for kind in kinds)
    runs = await _known(connection, SCOPES.c.key, of_runs, [one.run for one in entries])
    configurations = await _known(
        connection, SCOPES.c.key, of_configurations, [one.configuration for one in entries]
    )
    refused = set()
    for entry in entries:
        if entry.observation.id in ids:
            continue
        more = Counter(
            num_bytes=entry.most,
            num_runs=entry.run not in runs,
            num_configurations=entry.configuration not in configurations,
        )
        if any(held[name] + more[name] > limit for name, limit in zip(_COUNTED, most, strict=True)):
            refused.add((tenant, entry.observation.id))
            continue
        held.update(more)
        runs.add(entry.run)
        configurations.add(entry.configuration)
    return refused


async def _known(
    connection: AsyncConnection, column: Any, of: ColumnElement[bool], values: Sequence[str]
) -> set[str]:
    found: set[str] = set()
    for part in chunks(sorted(set(values))):
        found.update((await connection.scalars(select(column).where(of, column.in_(part)))).all())
    return found
