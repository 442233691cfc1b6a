"""Promotions in SQL, for rerankers on several machines: they share a database and a store of versions."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import and_, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_kit.storage.sql import now_us
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.tables import PROMOTIONS, WITHDRAWN
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.models.manifest import ManifestError
from evenmesh_reranker.models.ports import Pointers, Select, WithdrawnError
from evenmesh_reranker.models.store import ModelStore, Pointer

_ABANDONED_US: Final = 3600 * 10**6
"""Age at which the removal of a version is begun again: whoever began it died. Microseconds."""

_log = logging.getLogger("evenmesh.reranker.models")


class SqlPromotions:
    """A :class:`evenmesh_reranker.models.ports.Promotions`.

    A change is one transaction, so of two at once the second sees the first. Removing a version takes longer
    than a transaction should: its name is in the table of withdrawn ones meanwhile.

    Args:
        database: the database of feedback.
        clock: the time. Microseconds since 1970.
    """

    def __init__(self, database: Database, *, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self._clock = clock

    async def adopt(self, folder: ModelStore) -> None:
        """Take over what pointer files say, if nothing was ever promoted here; they are not read again.

        Raises:
            Unavailable: the database cannot be reached, or failed.
        """
        found, problems = await asyncio.to_thread(folder.pointers)
        if not found:
            return
        async with self._database.write() as connection:
            if await connection.scalar(select(func.count()).select_from(PROMOTIONS)):
                return
            for revision, (scope, pointer) in enumerate(found.items(), start=1):
                row = {
                    **_key(scope),
                    **_values(pointer),
                    "revision": revision,
                    "changed_at_us": self._clock(),
                }
                await connection.execute(PROMOTIONS.insert().values(row))
        for problem in problems:
            _log.error("a promotion was not taken over: %s", problem)
        _log.info("promotions were taken over from files", extra={"promotions": len(found)})

    async def pointers(self) -> tuple[Pointers, Sequence[ManifestError]]:
        """See the port."""
        async with self._database.read() as connection:
            return await _read(connection)

    async def pointer(self, scope: Scope) -> Pointer:
        """See the port."""
        async with self._database.read() as connection:
            return await _pointer_of(connection, scope)

    async def changed_at(self, scope: Scope) -> datetime | None:
        """See the port."""
        async with self._database.read() as connection:
            at = await connection.scalar(select(PROMOTIONS.c.changed_at_us).where(_here(scope)))
        return None if at is None else datetime.fromtimestamp(at / 1e6, UTC)

    async def stamp(self) -> Hashable:
        """See the port."""
        async with self._database.read() as connection:
            return await connection.scalar(select(func.max(PROMOTIONS.c.revision))) or 0

    async def replace(self, scope: Scope, before: Pointer, after: Pointer) -> bool:
        """See the port. A row that cannot be understood is replaced."""
        async with self._database.write() as connection:
            gone = select(WITHDRAWN.c.version).where(WITHDRAWN.c.version == after.serving)
            if await connection.scalar(gone) is not None:
                raise WithdrawnError
            try:
                if await _pointer_of(connection, scope) != before:
                    return False
            except ManifestError as error:
                _log.error("a promotion is replaced: %s", error)
            newest = await connection.scalar(select(func.max(PROMOTIONS.c.revision))) or 0
            values = {**_values(after), "revision": newest + 1, "changed_at_us": self._clock()}
            key = _key(scope)
            insert = self._database.insert(PROMOTIONS).values(**key, **values)
            await connection.execute(insert.on_conflict_do_update(index_elements=list(key), set_=values))
        return True

    @asynccontextmanager
    async def withdrawing(self, select: Select) -> AsyncIterator[Sequence[str]]:
        """See the port. Versions whose removal a dead process left are among what it yields."""
        versions = await self._withdraw(select)
        try:
            yield versions
        finally:
            async with self._database.write() as connection:
                await connection.execute(delete(WITHDRAWN).where(WITHDRAWN.c.version.in_(versions)))

    async def _withdraw(self, choose: Select) -> list[str]:
        now = self._clock()
        async with self._database.write() as connection:
            pointers, problems = await _read(connection)
            rows = await connection.execute(select(WITHDRAWN))
            since = {row.version: row.since_us for row in rows}
            wanted = set() if problems else set(choose(pointers))
            new = wanted - since.keys()
            left = {version for version, at in since.items() if now - at > _ABANDONED_US}
            if new:
                rows_new = [{"version": version, "since_us": now} for version in sorted(new)]
                await connection.execute(WITHDRAWN.insert(), rows_new)
        return sorted(new | left)


async def _read(connection: AsyncConnection) -> tuple[Pointers, Sequence[ManifestError]]:
    found: dict[Scope, Pointer] = {}
    problems = []
    for row in await connection.execute(select(PROMOTIONS)):
        agent = Agent(row.task_id, row.model_id, row.tenant)
        try:
            found[AllAgents(row.tenant) if row.everyone else agent] = _pointer(row)
        except ManifestError as error:
            problems.append(error)
    return found, problems


async def _pointer_of(connection: AsyncConnection, scope: Scope) -> Pointer:
    row = (await connection.execute(select(PROMOTIONS).where(_here(scope)))).one_or_none()
    return Pointer() if row is None else _pointer(row)


def _pointer(row: Any) -> Pointer:
    try:
        history = json.loads(row.history)
        if not isinstance(history, list):
            raise ValueError("no list")
    except ValueError:
        raise ManifestError(f"the history of revision {row.revision} cannot be understood") from None
    return Pointer(row.serving, tuple(None if one is None else str(one) for one in history))


def _values(pointer: Pointer) -> dict[str, Any]:
    return {"serving": pointer.serving, "history": json.dumps(pointer.history)}


def _key(scope: Scope) -> dict[str, Any]:
    if isinstance(scope, Agent):
        return {"tenant": scope.tenant, "everyone": 0, "task_id": scope.task_id, "model_id": scope.model_id}
    return {"tenant": scope.tenant, "everyone": 1, "task_id": "", "model_id": ""}


def _here(scope: Scope) -> Any:
    return and_(*(PROMOTIONS.c[name] == value for name, value in _key(scope).items()))
