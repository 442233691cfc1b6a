"""Deletion from the SQL store, in steps that other writers can wait for."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_evaluator.backends.sql_tables import CONVERSATIONS, OBSERVATIONS, SCOPES, SEGMENTS
from evenmesh_evaluator.backends.sql_usage import KEPT_BYTES, ROW_BYTES
from evenmesh_kit.storage.sql import chunks

MAX_STEP: Final = 500
"""Most rows of a table that one step deletes."""

_STEP_BYTES: Final = 16 << 20
"""Most bytes of observations that one step deletes, or one observation: a database reads what it frees."""

_DELETED: Final = -1
"""Kind of the scope whose number must not be given again."""

_O: Final = OBSERVATIONS.c


class RunStep(NamedTuple):
    """What one step of the deletion of a run did.

    Attributes:
        num_observations: observations that it deleted.
        num_bytes: what it freed of what the tenant may keep. Bytes.
        ended: whether nothing of the run is left.
        found: whether the run was there when this step ended the deletion.
    """

    num_observations: int
    num_bytes: int
    ended: bool = False
    found: bool = False


async def stored_before(connection: AsyncConnection, stored_us: int) -> dict[str, Counter[str]]:
    """Delete the oldest observations that were stored before a time, as many as a step may.

    Args:
        connection: of a transaction.
        stored_us: microseconds since 1970.

    Returns:
        By tenant, how many observations (``number``) and how many bytes (``num_bytes``) it kept of them.
    """
    due = _candidates().where(_O.stored_at_us < stored_us).order_by(_O.stored_at_us, _O.sequence)
    deleted: dict[str, Counter[str]] = {}
    for tenant, num_bytes in await _delete_observations(connection, due):
        deleted.setdefault(tenant, Counter()).update(number=1, num_bytes=num_bytes)
    return deleted


async def run_step(connection: AsyncConnection, tenant: str, run_id: str, kind: int) -> RunStep:
    """Delete some of what there is of a run, its report in the end.

    Args:
        connection: of a transaction.
        tenant: owner of the run.
        run_id: the run.
        kind: of the scopes of runs.
    """
    mine = and_(_O.tenant == tenant, _O.run_id == run_id)
    taken = [size for _, size in await _delete_observations(connection, _candidates().where(mine))]
    if taken:
        return RunStep(len(taken), sum(taken))
    columns = CONVERSATIONS.c
    of_run = and_(columns.tenant == tenant, columns.run_id == run_id)
    ids = (await connection.scalars(select(columns.conversation_id).where(of_run).limit(MAX_STEP))).all()
    for part in chunks(ids):
        await connection.execute(CONVERSATIONS.delete().where(of_run, columns.conversation_id.in_(part)))
    if ids:
        return RunStep(0, len(ids) * KEPT_BYTES)
    key = and_(SCOPES.c.tenant == tenant, SCOPES.c.kind == kind, SCOPES.c.key == run_id)
    scope_id = await connection.scalar(select(SCOPES.c.id).where(key))
    if scope_id is None:
        return RunStep(0, 0, ended=True)
    await connection.execute(SEGMENTS.delete().where(SEGMENTS.c.scope_id == scope_id))
    await _delete_scope(connection, scope_id)
    return RunStep(0, 0, ended=True, found=True)


def _candidates() -> Select[Any]:
    return select(_O.sequence, _O.tenant, func.length(_O.payload)).limit(MAX_STEP)


async def _delete_observations(connection: AsyncConnection, candidates: Select[Any]) -> list[tuple[str, int]]:
    """Delete the first of some observations; return the tenant of each, and what it kept of it in bytes."""
    sequences: list[int] = []
    kept: list[tuple[str, int]] = []
    total = 0
    for sequence, tenant, num_bytes in await connection.execute(candidates):
        total += num_bytes
        if sequences and total > _STEP_BYTES:
            break
        sequences.append(sequence)
        kept.append((tenant, ROW_BYTES + num_bytes))
    for part in chunks(sequences):
        await connection.execute(OBSERVATIONS.delete().where(_O.sequence.in_(part)))
    return kept


async def _delete_scope(connection: AsyncConnection, scope_id: int) -> None:
    """Delete a scope, and keep its number from being given again, as SQLite does with the largest one.

    Evaluators remember sums of segments under the numbers of their scopes.
    """
    marked: ColumnElement[bool] = SCOPES.c.kind == _DELETED
    largest = select(func.max(SCOPES.c.id)).scalar_subquery()
    values = {"tenant": "", "kind": _DELETED, "key": str(scope_id)}
    await connection.execute(SCOPES.update().where(SCOPES.c.id == scope_id).values(values))
    await connection.execute(SCOPES.delete().where(marked, SCOPES.c.id < largest))
