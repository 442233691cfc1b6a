"""A durable log of entries by tenant, between those who write faster than others can store.

:class:`TenantLog` is the port, :class:`RedisLog` keeps it in Redis or Valkey: a stream for each tenant, so
that one tenant's entries neither take another's room nor delay them, read by one group of consumers, so that
each entry goes to one of them until it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import grpc

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.redis_client import answer, connect

LOG_UNAVAILABLE: Final = "LOG_UNAVAILABLE"
"""Reason of calls while the log does not answer, or is not durable."""
LOG_FULL: Final = "LOG_FULL"
"""Reason of entries for which their tenant has no room."""
MAX_DELIVERIES: Final = 5
"""Times that an entry is given to a consumer which ends before it is done; then it is set aside."""

_GROUP: Final = "evenmesh"
_PAYLOAD: Final = b"p"
_WHY: Final = b"why"
_ANSWER_S: Final = 5.0
_RETRY_S: Final = 1.0
_MAX_SET_ASIDE: Final = 10_000
_MAX_WHY: Final = 1_000
_log = logging.getLogger("evenmesh.kit.log")

_APPEND: Final = """
if redis.call('XLEN', KEYS[1]) + #ARGV - 2 > tonumber(ARGV[1]) then return 0 end
redis.call('SADD', KEYS[2], ARGV[2])
for which = 3, #ARGV do redis.call('XADD', KEYS[1], '*', 'p', ARGV[which]) end
return 1
"""
"""KEYS: the tenant's stream, the set of tenants. ARGV: most entries, the tenant, entries. Returns whether
there was room for all."""


class LogSettingError(ValueError):
    """The setting of a log cannot be used; the message says why and how to mend it."""


class LogEntry(NamedTuple):
    """An entry that a consumer was given."""

    tenant: str
    id: bytes
    payload: bytes


class TenantLog(Protocol):
    """Keeps entries until a consumer is done with them. Every method raises Unavailable while it is away."""

    async def open(self) -> None:
        """Check that the log answers and is durable.

        Raises:
            Unavailable: ``LOG_UNAVAILABLE``.
        """

    async def append(self, tenant: str, payloads: Sequence[bytes]) -> None:
        """Add entries of a tenant, all or none; they are as durable as the log when this returns.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, ``LOG_FULL``, with a time after which to try again.
        """

    async def read(self, consumer: str, *, count: int, wait_s: float) -> list[LogEntry]:
        """Give the consumer new entries, at most ``count`` of each tenant; wait for the first.

        Args:
            consumer: name of this consumer, its own.
            count: entries, [1, inf).
            wait_s: returns nothing after this time. Seconds, (0, inf).
        """

    async def reclaim(self, consumer: str, *, count: int, idle_s: float) -> list[LogEntry]:
        """Give the consumer entries that were given to one, perhaps itself, and not done since.

        Entries that were given out :data:`MAX_DELIVERIES` times are set aside instead.

        Args:
            consumer: name of this consumer.
            count: entries of each tenant, [1, inf).
            idle_s: time since they were given out. Seconds, [0, inf).
        """

    async def hold(self, consumer: str, entries: Sequence[LogEntry], *, blameless: bool = False) -> None:
        """Say that the consumer is still at work on entries, so that no other one is given them.

        Args:
            consumer: name of this consumer.
            entries: those that it was given.
            blameless: whether it tried them and lives, so that what was given out before counts no more.
        """

    async def done(self, entries: Sequence[LogEntry]) -> None:
        """Remove entries."""

    async def set_aside(self, entry: LogEntry, why: str) -> None:
        """Remove an entry that nobody can use, and keep it for a person to look at."""

    async def waiting(self) -> int:
        """Return how many entries are not done. Entries, [0, inf)."""

    async def close(self) -> None:
        """Close the connections."""


class RedisLog:
    """A :class:`TenantLog` in a server that speaks the Redis protocol (Redis 6.2, Valkey 7 or later).

    The server must write an append-only file (``appendonly yes``); with ``appendfsync always`` an entry is on
    disk before its append returns, with ``everysec`` up to a second of entries can be lost with the machine.
    What is set aside is in streams ``{evenmesh:NAME}:refused:TENANT``, the last 10,000 of each tenant.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; it may hold a password.
        name: of the log, such as ``observations``.
        max_entries: most entries of a tenant that wait. Entries, [1, inf).
        variable: environment variable that has the URL, for errors.

    Raises:
        LogSettingError: the URL is none, or the package ``redis`` is missing.
    """

    def __init__(self, url: str, name: str, *, max_entries: int, variable: str) -> None:
        try:
            # The package types a client's answers for both of its modes, with and without decoding.
            self._server: Any = connect(url, _ANSWER_S)
        except ImportError:
            words = f"{variable} needs the package redis: in a checkout, pip install './libs/kit[redis]'"
            raise LogSettingError(words) from None
        except ValueError:  # its text may hold the password
            words = f"{variable}: must be a URL, such as redis://:PASSWORD@redis:6379/0"
            raise LogSettingError(words) from None
        self._append = self._server.register_script(_APPEND)
        self._scope = f"{{evenmesh:{name}}}"  # one slot of a cluster
        self._max_entries = max_entries
        self._grouped: set[str] = set()
        self._checked = False

    async def open(self) -> None:
        """Check that the server answers and keeps entries on disk."""
        await self._asked(self._check)

    async def append(self, tenant: str, payloads: Sequence[bytes]) -> None:
        """Add entries of a tenant, all or none."""
        if not self._checked:
            await self.open()
        keys = [self._stream(tenant), f"{self._scope}:tenants"]
        arguments: list[Any] = [self._max_entries, tenant, *payloads]
        if not await self._asked(partial(self._append, keys=keys, args=arguments)):
            words = f"{self._max_entries} entries of this tenant wait in the log; try again later"
            raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, LOG_FULL, words, retry_after_s=_RETRY_S)

    async def read(self, consumer: str, *, count: int, wait_s: float) -> list[LogEntry]:
        """Give the consumer new entries."""
        tenants = await self._tenants()
        if not tenants:
            await asyncio.sleep(wait_s)
            return []
        streams = {self._stream(tenant): ">" for tenant in tenants}
        wait_ms = max(1, int(1000 * wait_s))
        ask = partial(self._server.xreadgroup, _GROUP, consumer, streams, count=count, block=wait_ms)
        found = await self._asked(ask, more_s=wait_s)
        return [
            LogEntry(_tenant(stream), id_, fields[_PAYLOAD])
            for stream, entries in _pairs(found)
            for id_, fields in entries
        ]

    async def reclaim(self, consumer: str, *, count: int, idle_s: float) -> list[LogEntry]:
        """Give the consumer what was given out and not done since."""
        idle_ms = int(1000 * idle_s)
        reclaimed: list[LogEntry] = []
        for tenant in await self._tenants():
            stream = self._stream(tenant)
            pending = await self._asked(
                partial(
                    self._server.xpending_range, stream, _GROUP, min="-", max="+", count=count, idle=idle_ms
                )
            )
            ids = [one["message_id"] for one in pending]
            if not ids:
                continue
            deliveries = {one["message_id"]: one["times_delivered"] for one in pending}
            claimed = await self._asked(partial(self._server.xclaim, stream, _GROUP, consumer, idle_ms, ids))
            for id_, fields in claimed:
                entry = LogEntry(tenant, id_, fields[_PAYLOAD])
                if deliveries[id_] < MAX_DELIVERIES:
                    reclaimed.append(entry)
                else:
                    await self.set_aside(entry, f"it was given out {deliveries[id_]} times and never done")
        return reclaimed

    async def hold(self, consumer: str, entries: Sequence[LogEntry], *, blameless: bool = False) -> None:
        """Say that the consumer is still at work on entries."""
        counts = {"retrycount": 0} if blameless else {}
        for tenant, ids in _by_tenant(entries).items():
            stream = self._stream(tenant)
            await self._asked(
                partial(self._server.xclaim, stream, _GROUP, consumer, 0, ids, justid=True, **counts)
            )

    async def done(self, entries: Sequence[LogEntry]) -> None:
        """Remove entries, in one transaction for each tenant."""
        for tenant, ids in _by_tenant(entries).items():
            stream = self._stream(tenant)
            pipeline = self._server.pipeline(transaction=True)
            pipeline.xack(stream, _GROUP, *ids)
            pipeline.xdel(stream, *ids)
            await self._asked(pipeline.execute)

    async def set_aside(self, entry: LogEntry, why: str) -> None:
        """Move an entry to the stream of those refused."""
        _log.error("an entry of the log is set aside: %s", why)
        stream = self._stream(entry.tenant)
        pipeline = self._server.pipeline(transaction=True)
        fields = {_PAYLOAD: entry.payload, _WHY: why[:_MAX_WHY]}
        pipeline.xadd(f"{self._scope}:refused:{entry.tenant}", fields, maxlen=_MAX_SET_ASIDE)
        pipeline.xack(stream, _GROUP, entry.id)
        pipeline.xdel(stream, entry.id)
        await self._asked(pipeline.execute)

    async def waiting(self) -> int:
        """Return how many entries are not done."""
        streams = [self._stream(tenant) for tenant in await self._tenants()]
        return sum([await self._asked(partial(self._server.xlen, stream)) for stream in streams])

    async def close(self) -> None:
        """Close the connections."""
        await self._server.aclose()

    def _stream(self, tenant: str) -> str:
        return f"{self._scope}:of:{tenant}"

    async def _tenants(self) -> list[str]:
        """Return the tenants with a stream, each of which has the group."""
        found = await self._asked(partial(self._server.smembers, f"{self._scope}:tenants"))
        tenants = sorted(one.decode() for one in found)
        for tenant in tenants:
            if tenant not in self._grouped:
                await self._asked(partial(self._group, tenant))
                self._grouped.add(tenant)
        return tenants

    async def _group(self, tenant: str) -> None:
        from redis.exceptions import ResponseError

        try:
            await self._server.xgroup_create(self._stream(tenant), _GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _check(self) -> None:
        persistence = await self._server.info("persistence")
        if not persistence.get("aof_enabled"):
            words = "the log keeps entries in memory alone: set appendonly yes on its server"
            raise Unavailable(LOG_UNAVAILABLE, words)
        self._checked = True

    async def _asked(self, ask: Callable[[], Awaitable[Any]], *, more_s: float = 0.0) -> Any:
        """Return the server's answer.

        Raises:
            Unavailable: there is none, or it is an error.
        """
        try:
            return await answer(ask(), _ANSWER_S + more_s)
        except MeshError:
            raise
        except Exception as error:
            # It may be another server when it is back: without the groups, and in memory alone.
            self._checked = False
            self._grouped.clear()
            words = f"the log does not answer ({type(error).__name__}); try again"
            raise Unavailable(LOG_UNAVAILABLE, words) from error


def _by_tenant(entries: Sequence[LogEntry]) -> dict[str, list[bytes]]:
    """Return the ids of entries by tenant."""
    by_tenant: dict[str, list[bytes]] = {}
    for entry in entries:
        by_tenant.setdefault(entry.tenant, []).append(entry.id)
    return by_tenant


def _tenant(stream: bytes) -> str:
    return stream.decode().partition("}:of:")[2]


def _pairs(found: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Return streams with their entries, in either version of the protocol."""
    if isinstance(found, dict):
        return [(stream, [entry for part in parts for entry in part]) for stream, parts in found.items()]
    return list(found or [])
