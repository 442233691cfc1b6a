"""The store of conversations in a database that several orchestrators share."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sqlalchemy import URL, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.storage.failures import DatabaseFailure
from evenmesh_orchestrator.conversations import store as errors
from evenmesh_orchestrator.conversations.conversation import (
    Conversation,
    ConversationState,
    Limits,
    TurnRecord,
)
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.conversations.sql import payloads
from evenmesh_orchestrator.conversations.sql.database import Database
from evenmesh_orchestrator.conversations.sql.holdings import Holdings, idle
from evenmesh_orchestrator.conversations.sql.tables import CONVERSATIONS, HOLDERS, TURNS
from evenmesh_orchestrator.conversations.store import TURN_BYTES, ConversationLost
from evenmesh_orchestrator.observations.shares import DynamicShares

_log = logging.getLogger("evenmesh.orchestrator.conversations")

DEFAULT_LEASE_S: Final = 10.0
"""How long the conversations of an orchestrator that died stay in use. Seconds."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_INLINE_BYTES: Final = 65_536
_RENEWALS: Final = 3
_LEAVE_AT_ONCE: Final = 200
"""Most leases that one transaction gives up, so that it ends in time after the database was away."""
_PASSING: Final = {f"STORE_{one}" for one in (DatabaseFailure.UNAVAILABLE, DatabaseFailure.LOCKED)}
"""Reasons for which an orchestrator starts without its database, and looks for it again."""


@dataclass(slots=True)
class _Stored:
    """What the database has of a conversation in use."""

    settings: bytes
    options: Options
    num_bytes: int


class SqlConversationStore:
    """A :class:`~evenmesh_orchestrator.conversations.store.ConversationStore` in SQLite or PostgreSQL.

    Each stream that uses a conversation has a lease, a name of its own in the conversation's row, and each
    orchestrator has one row that says until when it lives, which it renews. A lease whose orchestrator lives
    no longer counts for nothing. So an orchestrator that only was out of touch goes on where nobody else
    did, and every write names its lease and the number of turns before it: no two streams add to the same.

    Conversations in use and turns that wait count in this process's memory too, within the same limit of
    bytes.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        limits: size and lifetime, of all orchestrators together.
        lease_s: how long the conversations of an orchestrator that died stay in use. Seconds, (0, inf).
        clock: the time, in microseconds since 1970; None for the database server's own.
    """

    def __init__(
        self,
        url: URL,
        limits: Limits,
        *,
        lease_s: float = DEFAULT_LEASE_S,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._database = Database(url, clock=clock)
        self._is_file = url.get_backend_name() == "sqlite"
        self._limits = limits
        self._lease_s = lease_s
        self._holder = secrets.token_hex(16)
        self._memory = DynamicShares(limits.bytes, limits.tenant_share)
        self._stored: dict[str, _Stored | None] = {}
        # By lease, those that streams gave up and the database does not know of.
        self._leaving: dict[str, tuple[str, str]] = {}
        self._upkeep: asyncio.Task[None] | None = None
        self._away = False

    @property
    def lifetime_s(self) -> float:
        """See the port."""
        return self._limits.lifetime_s

    @property
    def num_bytes(self) -> int:
        """What conversations in use and turns that wait take in this process. Bytes."""
        return self._memory.total

    async def start(self) -> None:
        """See the port. A server that does not answer now is looked for again."""
        try:
            await self._keep_up()
        except Unavailable as error:
            if self._is_file or error.reason not in _PASSING:
                raise
            self._report(error)
        self._upkeep = asyncio.create_task(self._keep_up_always())

    async def stop(self) -> None:
        """See the port. Other orchestrators may go on with this one's conversations at once."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        try:
            async with self._write() as (connection, now):
                await self._leave(connection, now)
                await connection.execute(delete(HOLDERS).where(HOLDERS.c.holder == self._holder))
        except MeshError as error:
            self._report(error)
        await self._database.close()

    def hold(self, tenant: str, size: int) -> None:
        """See the port."""
        if size > 0:
            self._check_memory(tenant, size)
        self._memory.add(tenant, size)

    async def acquire(self, tenant: str, conversation_id: str = "") -> Conversation:
        """See the port."""
        found = Conversation(
            conversation_id or secrets.token_hex(16), self._limits, tenant, lease=secrets.token_hex(16)
        )
        self._stored[found.lease] = None
        try:
            await (self._resume(found) if conversation_id else self._begin(found))
        except BaseException:
            del self._stored[found.lease]
            self._memory.add(tenant, -found.num_bytes)
            raise
        return found

    async def keep(self, conversation: Conversation, settings: bytes, options: Options) -> None:
        """See the port. The database has them with the next turn."""
        async with self._database.read() as connection:
            row = await _row(connection, conversation)
            if row is None or row.lease != conversation.lease:
                raise ConversationLost
            if row.num_turns != len(conversation.turns):
                # The last turn was stored, although its transaction seemed to fail.
                await self._load(connection, conversation, row)
            more = (
                len(settings)
                + options.num_bytes
                - len(conversation.settings)
                - conversation.options.num_bytes
            )
            self._check_memory(conversation.tenant, more + TURN_BYTES)
            wanted = conversation.num_bytes + more + TURN_BYTES - self._of(conversation).num_bytes
            holdings = await self._holdings(connection)
            fits = holdings.bytes.room(conversation.tenant) >= wanted
        if not fits:
            async with self._write() as (connection, now):
                holdings = await self._holdings(connection)
                await self._make_room(holdings, conversation.tenant, wanted, now)
        self._grow(conversation, more)
        conversation.settings = settings
        if options is not conversation.options:
            conversation.set_options(options)

    async def add(
        self,
        conversation: Conversation,
        turn: TurnRecord,
        state: ConversationState,
        relevance: float | None,
    ) -> None:
        """See the port."""
        size = turn.num_bytes
        self._check_memory(conversation.tenant, size)
        try:
            async with self._write() as (connection, now):
                await self._add(connection, now, conversation, turn, state, relevance)
        except MeshError as error:
            if not error.reason.startswith("STORE_"):
                raise
            raise MeshError(
                error.code,
                "TURN_NOT_STORED",
                f"the turn was answered, but not stored ({error.message}): ask again, unless the number of "
                "the next turn shows that it was stored after all",
            ) from error
        self._grow(conversation, size)
        self._stored[conversation.lease] = _Stored(
            conversation.settings, conversation.options, conversation.num_bytes
        )
        conversation.add(turn, state)
        conversation.relevance = relevance

    async def release(self, conversation: Conversation) -> None:
        """See the port. Where the database is away, others get it when it is back."""
        del self._stored[conversation.lease]
        self._memory.add(conversation.tenant, -conversation.num_bytes)
        self._leaving[conversation.lease] = (conversation.tenant, conversation.id)
        try:
            async with self._write() as (connection, now):
                left = await self._leave(connection, now)
        except MeshError as error:
            self._report(error)
        else:
            self._forget_leaving(left)

    async def _begin(self, made: Conversation) -> None:
        async with self._leasing(made) as written, self._write() as (connection, now):
            holdings = await self._holdings(connection)
            if not await holdings.make_room(holdings.conversations, made.tenant, 1, now):
                raise errors.too_many(holdings.conversations.of(made.tenant))
            await holdings.add(made.tenant, 1, 0)
            written.set()
            await connection.execute(
                insert(CONVERSATIONS).values(
                    tenant=made.tenant,
                    id=made.id,
                    holder=self._holder,
                    lease=made.lease,
                    used_at_us=now,
                    expires_at_us=now,  # once its holder is gone: it has no turns
                    format=payloads.FORMAT,
                    num_turns=0,
                    num_words=0,
                    num_bytes=0,
                    relevance=made.relevance,
                    run_id="",
                    settings=b"",
                    options=payloads.write_options(made.options),
                )
            )
        self._stored[made.lease] = _Stored(made.settings, made.options, 0)

    async def _resume(self, found: Conversation) -> None:
        # Ids are ours; others, which the database may not even be able to compare, are nobody's.
        if not _ID.fullmatch(found.id):
            raise errors.unknown(self._limits)
        columns = CONVERSATIONS.c
        async with self._leasing(found) as written:
            async with self._write() as (connection, now):
                row = await _row(connection, found, idle(now).label("idle"))
                if row is None or (row.idle and row.expires_at_us <= now):
                    raise errors.unknown(self._limits)
                given_up = row.holder == self._holder and row.lease not in self._stored
                if not row.idle and not given_up:
                    raise errors.busy()
                if row.format > payloads.FORMAT:
                    raise Unavailable(
                        "STORE_VERSION",
                        "the conversation was written by a later version of evenmesh: ask an orchestrator of "
                        "that version",
                    )
                self._check_memory(found.tenant, row.num_bytes)
                written.set()
                await connection.execute(
                    update(CONVERSATIONS)
                    .where(columns.tenant == found.tenant, columns.id == found.id)
                    .values(holder=self._holder, lease=found.lease)
                )
            async with self._database.read() as connection:
                await self._load(connection, found, row)

    @asynccontextmanager
    async def _leasing(self, conversation: Conversation) -> AsyncIterator[asyncio.Event]:
        """Give a lease up again if the block fails after it wrote the lease, which it says by the event."""
        written = asyncio.Event()
        try:
            yield written
        except BaseException:
            if written.is_set():
                self._leaving[conversation.lease] = (conversation.tenant, conversation.id)
            raise

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[tuple[AsyncConnection, int]]:
        """Run the block in a transaction that writes, and says that this orchestrator lives."""
        async with self._database.write() as (connection, now):
            until = {"until_us": now + int(self._lease_s * 1e6)}
            row = self._database.insert(HOLDERS).values(holder=self._holder, **until)
            await connection.execute(row.on_conflict_do_update(index_elements=["holder"], set_=until))
            yield connection, now

    async def _load(self, connection: AsyncConnection, conversation: Conversation, row: Any) -> None:
        """Read a conversation as the database has it."""
        columns = TURNS.c
        query = select(columns.payload).where(
            columns.tenant == conversation.tenant, columns.id == conversation.id
        )
        found = (await connection.scalars(query.order_by(columns.number))).all()

        def read() -> tuple[Options, list[TurnRecord]]:
            return payloads.stored_options(row.options), [payloads.stored_turn(one) for one in found]

        large = len(row.options) + sum(map(len, found)) > _INLINE_BYTES
        options, turns = await asyncio.to_thread(read) if large else read()
        conversation.turns = turns
        conversation.options = options
        conversation.settings = row.settings
        conversation.run_id = row.run_id
        conversation.num_words = row.num_words
        conversation.relevance = row.relevance
        self._grow(conversation, row.num_bytes - conversation.num_bytes)
        self._stored[conversation.lease] = _Stored(row.settings, options, row.num_bytes)

    async def _add(
        self,
        connection: AsyncConnection,
        now: int,
        conversation: Conversation,
        turn: TurnRecord,
        state: ConversationState,
        relevance: float | None,
    ) -> None:
        stored, number = self._of(conversation), conversation.next_turn
        num_bytes = conversation.num_bytes + turn.num_bytes
        holdings = await self._holdings(connection)
        more = num_bytes - stored.num_bytes
        await self._make_room(holdings, conversation.tenant, more, now)
        values: dict[str, Any] = {
            "used_at_us": now,
            "expires_at_us": self._end_of_life(now),
            "format": payloads.FORMAT,
            "num_turns": number,
            "num_words": state.num_words,
            "num_bytes": num_bytes,
            "relevance": relevance,
            "run_id": conversation.run_id,
        }
        # Megabytes, where there are candidates: written again only where they changed.
        if conversation.settings != stored.settings:
            values["settings"] = conversation.settings
        if conversation.options is not stored.options:
            values["options"] = payloads.write_options(conversation.options)
        columns = CONVERSATIONS.c
        done = await connection.execute(
            update(CONVERSATIONS)
            .where(
                columns.tenant == conversation.tenant,
                columns.id == conversation.id,
                columns.lease == conversation.lease,
                columns.num_turns == number - 1,
            )
            .values(values)
        )
        if done.rowcount != 1:
            raise ConversationLost
        await connection.execute(
            insert(TURNS).values(
                tenant=conversation.tenant,
                id=conversation.id,
                number=number,
                payload=payloads.write_turn(turn),
            )
        )
        await holdings.add(conversation.tenant, 0, more)

    async def _leave(self, connection: AsyncConnection, now: int) -> Mapping[str, tuple[str, str]]:
        """Give the oldest leases up; return those that are given up once the transaction ends."""
        left = dict(islice(self._leaving.items(), _LEAVE_AT_ONCE))
        columns = CONVERSATIONS.c
        for lease, (tenant, conversation_id) in left.items():
            ours = and_(columns.tenant == tenant, columns.id == conversation_id, columns.lease == lease)
            empty = select(columns.tenant, columns.id, columns.num_bytes).where(ours, columns.num_turns == 0)
            if rows := (await connection.execute(empty)).all():
                await Holdings(self._database, self._limits, connection).remove(rows)
            await connection.execute(
                update(CONVERSATIONS)
                .where(ours)
                .values(holder=None, lease=None, used_at_us=now, expires_at_us=self._end_of_life(now))
            )
        return left

    def _forget_leaving(self, left: Mapping[str, tuple[str, str]]) -> None:
        for lease in left:
            self._leaving.pop(lease, None)

    async def _keep_up_always(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / _RENEWALS)
            try:
                await self._keep_up()
            except MeshError as error:
                self._report(error)
            except Exception:  # noqa: BLE001 - without its upkeep this process would lose what its streams have
                _log.exception("the upkeep of conversations failed")
            else:
                if self._away:
                    self._away = False
                    _log.warning("the database of conversations is back")

    async def _keep_up(self) -> None:
        """Say that this orchestrator lives, give up what its streams gave up, and remove what is over."""
        async with self._write() as (connection, now):
            left = await self._leave(connection, now)
            holdings = await self._holdings(connection)
            await holdings.expire(now)
        self._forget_leaving(left)

    async def _holdings(self, connection: AsyncConnection) -> Holdings:
        holdings = Holdings(self._database, self._limits, connection)
        await holdings.read()
        return holdings

    async def _make_room(self, holdings: Holdings, tenant: str, size: int, now: int) -> None:
        if not await holdings.make_room(holdings.bytes, tenant, size, now):
            raise errors.too_large(holdings.bytes.of(tenant), size, self._limits)

    def _check_memory(self, tenant: str, size: int) -> None:
        if self._memory.room(tenant) < size:
            raise errors.too_large(self._memory.of(tenant), size, self._limits)

    def _grow(self, conversation: Conversation, size: int) -> None:
        self._memory.add(conversation.tenant, size)
        conversation.num_bytes += size

    def _of(self, conversation: Conversation) -> _Stored:
        stored = self._stored[conversation.lease]
        if stored is None:
            raise asyncio.InvalidStateError("a conversation is used before it was acquired")
        return stored

    def _end_of_life(self, now: int) -> int:
        return now + int(self._limits.lifetime_s * 1e6)

    def _report(self, error: MeshError) -> None:
        """Log that the database is away, once until it is back."""
        if not self._away:
            self._away = True
            _log.error(
                "the database of conversations is away; asks go on, turns do not",
                extra={"reason": error.reason, "why": error.message},
            )


async def _row(connection: AsyncConnection, conversation: Conversation, *more: Any) -> Any:
    """Return the row of a conversation, with more columns; None if it has none."""
    columns = CONVERSATIONS.c
    query = select(CONVERSATIONS, *more).where(
        columns.tenant == conversation.tenant, columns.id == conversation.id
    )
    return (await connection.execute(query)).one_or_none()
