"""Logs of entries by tenant keep their contract: a real Redis server that writes its file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import grpc
import pytest
from redis.asyncio import Redis

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.storage.tenant_log import MAX_DELIVERIES, LogEntry, LogSettingError, RedisLog, TenantLog
from tests.support.redis_server import RedisServer, running

MOST = 5


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenmesh_kit.storage.tenant_log._ANSWER_S", 60.0)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that keeps everything on disk."""
    with running(durable=True) as server:
        yield server


@pytest.fixture
async def log(server: RedisServer) -> AsyncIterator[TenantLog]:
    """An empty log with room for five entries of each tenant."""
    log = RedisLog(server.url, f"test-{uuid4().hex}", max_entries=MOST, variable="LOG")
    await log.open()
    yield log
    await log.close()


def texts(entries: list[LogEntry]) -> list[tuple[str, bytes]]:
    """Tenants and payloads."""
    return [(one.tenant, one.payload) for one in entries]


async def read(log: TenantLog, consumer: str = "one", count: int = 100) -> list[LogEntry]:
    """What a consumer is given now."""
    return await log.read(consumer, count=count, wait_s=0.05)


async def test_entries_come_in_their_order_and_once(log: TenantLog) -> None:
    await log.append("a", [b"1", b"2"])
    await log.append("a", [b"\x00\xff"])
    first = await read(log, "one", count=2)
    second = await read(log, "two")
    assert texts(first) == [("a", b"1"), ("a", b"2")]
    assert texts(second) == [("a", b"\x00\xff")]
    assert await read(log) == []
    assert await log.waiting() == 3
    await log.done(first + second)
    assert await log.waiting() == 0


async def test_every_tenant_has_its_share_of_what_is_read(log: TenantLog) -> None:
    await log.append("loud", [b"%d" % number for number in range(MOST)])
    await log.append("quiet", [b"q"])
    assert sorted(texts(await read(log, count=1))) == [("loud", b"0"), ("quiet", b"q")]


async def test_one_tenant_cannot_take_the_room_of_another(log: TenantLog) -> None:
    await log.append("loud", [b"x"] * (MOST - 1))
    with pytest.raises(MeshError) as caught:
        await log.append("loud", [b"y", b"z"])  # all or none
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LOG_FULL")
    assert caught.value.retry_after_s is not None
    assert await log.waiting() == MOST - 1
    await log.append("quiet", [b"q"])
    await log.done((await read(log, count=1))[:1])
    await log.append("loud", [b"y", b"z"])


async def test_a_consumer_takes_over_what_another_left(log: TenantLog) -> None:
    await log.append("a", [b"1", b"2"])
    left = await read(log, "ended")
    assert await log.reclaim("heir", count=10, idle_s=3600) == []
    assert texts(await log.reclaim("heir", count=1, idle_s=0)) == [("a", b"1")]
    assert texts(await log.reclaim("heir", count=10, idle_s=0)) == texts(left)


async def test_nobody_takes_over_what_is_held(log: TenantLog) -> None:
    await log.append("a", [b"1"])
    entries = await read(log, "busy")
    for _ in range(2 * MAX_DELIVERIES):  # holding is no delivery
        await log.hold("busy", entries)
    assert await log.reclaim("heir", count=10, idle_s=3600) == []
    assert texts(await log.reclaim("heir", count=10, idle_s=0)) == [("a", b"1")]


async def test_what_ends_every_consumer_is_set_aside(log: TenantLog) -> None:
    await log.append("a", [b"poison"])
    assert texts(await read(log)) == [("a", b"poison")]
    for _ in range(MAX_DELIVERIES - 1):
        assert texts(await log.reclaim("next", count=10, idle_s=0)) == [("a", b"poison")]
    assert await log.reclaim("next", count=10, idle_s=0) == []
    assert await log.waiting() == 0


async def test_what_a_consumer_survives_is_not_set_aside(log: TenantLog) -> None:
    await log.append("a", [b"1"])
    entries = await log.read("first", count=10, wait_s=1)
    for _ in range(2 * MAX_DELIVERIES):
        await log.hold("first", entries, blameless=True)
        entries = await log.reclaim("next", count=10, idle_s=0)
        assert texts(entries) == [("a", b"1")]


async def test_what_is_set_aside_is_kept_apart(server: RedisServer) -> None:
    log = RedisLog(server.url, "aside", max_entries=MOST, variable="LOG")
    await log.append("a", [b"bad", b"good"])
    bad, good = await read(log)
    await log.set_aside(bad, "WHY: because")
    assert await log.waiting() == 1
    assert await log.reclaim("other", count=10, idle_s=0) == [good]
    await log.close()
    async with Redis.from_url(server.url) as redis:
        kept = await redis.xrange("{evenmesh:aside}:refused:a")
    assert kept is not None
    assert [fields for _, fields in kept] == [{b"p": b"bad", b"why": b"WHY: because"}]


async def test_nothing_is_lost_with_the_server(server: RedisServer, log: TenantLog) -> None:
    await log.append("a", [b"1", b"2"])
    given = await read(log)
    await log.append("a", [b"3"])
    server.kill()
    with pytest.raises(Unavailable) as caught:
        await log.append("a", [b"4"])
    assert caught.value.reason == "LOG_UNAVAILABLE"
    with pytest.raises(Unavailable):
        await read(log)
    server.start()
    assert texts(await read(log)) == [("a", b"3")]
    await log.done(given)
    assert await log.waiting() == 1


@pytest.mark.parametrize("steps", range(30))
async def test_a_cancelled_call_ends(server: RedisServer, steps: int) -> None:
    log = RedisLog(server.url, "cancelled", max_entries=MOST, variable="LOG")

    async def look() -> None:
        while True:
            await log.open()
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    for _ in range(steps):  # also while it connects, where the package loses cancellations
        await asyncio.sleep(0)
    looking.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(looking, return_exceptions=True)
    assert looking.cancelled()
    await log.close()


async def test_a_log_in_memory_alone_takes_nothing() -> None:
    with running() as server:
        log = RedisLog(server.url, "test", max_entries=MOST, variable="LOG")
        with pytest.raises(Unavailable, match="appendonly yes"):
            await log.append("a", [b"1"])
        await log.close()


def test_a_setting_that_is_no_url_is_named_without_its_password() -> None:
    with pytest.raises(LogSettingError, match=r"^LOG: must be a URL") as caught:
        RedisLog("http://:secret@redis", "test", max_entries=1, variable="LOG")
    assert "secret" not in str(caught.value)
