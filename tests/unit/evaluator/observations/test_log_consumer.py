"""The consumer of the log over a scripted log and store: nothing is lost, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, Unavailable
from evenmesh_evaluator.observations.consumer import LogConsumer
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_kit.security import caller as callers
from evenmesh_kit.storage.tenant_log import LogEntry
from tests.support.waiting import until


class ScriptedLog:
    """A log in memory, which can be away."""

    def __init__(self, *payloads: bytes) -> None:
        self.new = [LogEntry("acme", b"%d" % number, one) for number, one in enumerate(payloads)]
        self.given: dict[bytes, LogEntry] = {}
        self.held: list[bytes] = []
        self.aside: dict[bytes, str] = {}
        self.blameless: set[bytes] = set()
        self.away = False
        self.closed = False

    def _check(self) -> None:
        if self.away:
            raise Unavailable("LOG_UNAVAILABLE", "away")

    async def open(self) -> None:
        self._check()

    async def append(self, tenant: str, payloads: Sequence[bytes]) -> None:
        raise AssertionError("a consumer adds nothing")

    async def read(self, consumer: str, *, count: int, wait_s: float) -> list[LogEntry]:
        self._check()
        if not self.new:
            await asyncio.sleep(0.001)
        given, self.new = self.new[:count], self.new[count:]
        self.given.update((one.id, one) for one in given)
        return given

    async def reclaim(self, consumer: str, *, count: int, idle_s: float) -> list[LogEntry]:
        self._check()
        return []

    async def hold(self, consumer: str, entries: Sequence[LogEntry], *, blameless: bool = False) -> None:
        self._check()
        self.blameless.update(one.id for one in entries if blameless)
        self.held.extend(one.id for one in entries)

    async def done(self, entries: Sequence[LogEntry]) -> None:
        self._check()
        for one in entries:
            del self.given[one.id]

    async def set_aside(self, entry: LogEntry, why: str) -> None:
        self._check()
        del self.given[entry.id]
        self.aside[entry.id] = why

    async def waiting(self) -> int:
        return len(self.new) + len(self.given)

    async def close(self) -> None:
        self.closed = True


class ScriptedStore:
    """A store that can be away, refuses some, and knows for whom it stores."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, str, str]] = []
        self.attempts = 0
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, tenant: str, message: pb.Observation) -> pb.ObserveResponse:
        self.attempts += 1
        await self.gate.wait()
        if self.away:
            raise Unavailable("STORE_UNAVAILABLE", "away")
        if message.id == "bad":
            error = item_error(InvalidField("run_id", "must not be empty"))
            return pb.ObserveResponse(refusal=pb.ObserveRefusal(observation_id="bad", error=error))
        self.stored.append((tenant, callers.current().tenant, message.id))
        return pb.ObserveResponse(ack=pb.ObserveAck(observation_id=message.id))


def written(*ids: str) -> list[bytes]:
    """Observations as orchestrators write them."""
    return [pb.Observation(id=one).SerializeToString() for one in ids]


@asynccontextmanager
async def consuming(log: ScriptedLog, store: ScriptedStore) -> AsyncIterator[None]:
    consumer = LogConsumer(log, store)
    consumer.start()
    try:
        yield
    finally:
        await consumer.stop()


async def test_each_is_stored_for_its_tenant_and_removed() -> None:
    log, store = ScriptedLog(*written("a", "b")), ScriptedStore()
    async with consuming(log, store):
        await until(lambda: not log.new and not log.given)
    assert sorted(store.stored) == [("acme", "acme", "a"), ("acme", "acme", "b")]
    assert log.closed


async def test_what_is_refused_or_unreadable_is_set_aside_and_the_rest_goes_on() -> None:
    log, store = ScriptedLog(b"\xff\xff", *written("bad", "good")), ScriptedStore()
    async with consuming(log, store):
        await until(lambda: not log.new and not log.given)
    assert [one for _, _, one in store.stored] == ["good"]
    assert log.aside[b"0"] == "UNREADABLE: it is no observation"
    assert log.aside[b"1"] == "INVALID_FIELD: run_id: must not be empty"


async def test_what_cannot_be_stored_stays_and_is_held() -> None:
    log, store = ScriptedLog(*written("a", "b")), ScriptedStore()
    store.away = True
    async with consuming(log, store):
        await until(lambda: store.attempts >= 4)
        assert len(log.given) == 2
        assert set(log.held) == log.blameless == {b"0", b"1"}
        store.away = False
        await until(lambda: not log.given)
    assert len(store.stored) == 2


async def test_it_goes_on_when_the_log_is_back() -> None:
    log, store = ScriptedLog(*written("a")), ScriptedStore()
    log.away = True
    async with consuming(log, store):
        await asyncio.sleep(0.01)
        log.away = False
        await until(lambda: not log.new and not log.given)
    assert len(store.stored) == 1


async def test_a_stop_waits_for_what_is_being_stored() -> None:
    log, store = ScriptedLog(*written("a")), ScriptedStore()
    store.gate.clear()
    consumer = LogConsumer(log, store)
    consumer.start()
    await until(lambda: store.attempts == 1)
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    store.gate.set()
    await stopping
    assert log.given == {}
