"""The outbox relay over a real outbox and a scripted evaluator: nothing is lost, failures are reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from evenmesh.evaluator.v1.evaluator_service_pb2 import ObserveAck, ObserveRefusal, ObserveResponse, RunReport
from evenmesh.wire.errors import Internal, InvalidField, MeshError, Unavailable
from evenmesh_kit.rpc.breaker import Unanswered
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT, Caller
from evenmesh_orchestrator.domain import Contexts, Observation, Pool, Ranked
from evenmesh_orchestrator.observations import relay as relay_module
from evenmesh_orchestrator.observations.outbox import Outbox
from evenmesh_orchestrator.observations.relay import OutboxRelay
from evenmesh_orchestrator.ports import Receipt
from tests.support.waiting import until
from tests.unit.orchestrator.fakes import ask


class FakeStream:
    """A stream to the fake evaluator."""

    def __init__(self, evaluator: FakeEvaluator) -> None:
        self._evaluator = evaluator
        self._queue: asyncio.Queue[ObserveResponse | MeshError | None] = asyncio.Queue()
        self.dead = False
        self.tenant = callers.current().tenant
        evaluator.streams.append(self)

    async def send(self, payload: bytes, *, want_report: bool) -> bool:
        if self.dead:
            return False
        name = payload.decode()
        self._evaluator.received.append(name)
        self._evaluator.tenants.setdefault(self.tenant, []).append(name)
        if (
            self._evaluator.breaks_after is not None
            and len(self._evaluator.received) > self._evaluator.breaks_after
        ):
            self._evaluator.breaks_after = None
            self.fail(Unavailable("UPSTREAM_UNAVAILABLE", "gone"))
            return False
        if name == self._evaluator.fails_at:
            self.fail(self._evaluator.failure)
            return True
        if name in self._evaluator.refuses:
            refusal = ObserveRefusal(observation_id=name, error=item_error(InvalidField("id", "never")))
            self._queue.put_nowait(ObserveResponse(refusal=refusal))
            return True
        self._evaluator.stored.setdefault(name, 0)
        self._evaluator.stored[name] += 1
        self._queue.put_nowait(ObserveResponse(ack=ObserveAck(observation_id=name)))
        if want_report:
            report = RunReport(run_id=f"report after {name}")
            self._queue.put_nowait(ObserveResponse(report=report))
        return True

    def fail(self, error: MeshError) -> None:
        """Breaks the stream."""
        self.dead = True
        self._queue.put_nowait(error)

    async def responses(self) -> AsyncIterator[ObserveResponse]:
        if self._evaluator.error is not None:
            raise self._evaluator.error
        while (response := await self._queue.get()) is not None:
            if isinstance(response, MeshError):
                raise response
            yield response

    async def finish(self) -> None:
        self._queue.put_nowait(None)

    def cancel(self) -> None:
        self.dead = True


class FakeEvaluator:
    """An evaluator that counts what it stores."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.received: list[str] = []
        self.tenants: dict[str, list[str]] = {}
        self.stored: dict[str, int] = {}
        self.refuses: set[str] = set()
        self.error: MeshError | None = None
        self.breaks_after: int | None = None
        self.fails_at = ""
        self.failure: MeshError = Internal("0123456789abcdef")
        self.serves = True
        self.gives_reports = True
        self.max_message_bytes = 2**20
        self.on_change: Callable[[bool], None] = lambda _: None

    def observe(self) -> FakeStream:
        return FakeStream(self)

    async def is_serving(self) -> bool:
        return self.serves

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        self.on_change = on_change
        await asyncio.Event().wait()


def _observation(name: str, **changes: Any) -> Observation:
    asked = ask(**changes)
    object.__setattr__(asked, "id", name)
    nothing = np.empty((1, 0), dtype=np.int64)
    pool = Pool([], np.empty(0), nothing, None, "", "")
    return Observation(asked, pool, Ranked(Contexts(nothing, None), "none", ""), [], {})


@asynccontextmanager
async def _relay(
    path: Path, evaluator: FakeEvaluator, *, idle_s: float = 5.0
) -> AsyncIterator[tuple[OutboxRelay, Outbox]]:
    outbox = Outbox(path / "outbox.db", capacity=1000)
    relay = OutboxRelay(outbox, evaluator, lambda one: one.ask.id.encode(), idle_s=idle_s)
    await relay.start()
    await asyncio.sleep(0)
    try:
        yield relay, outbox
    finally:
        await relay.stop()


async def test_an_observation_arrives_once_in_order_and_leaves_the_outbox(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        receipts = [await relay.submit(_observation(str(i))) for i in range(100)]
        await until(lambda: outbox.size == 0)
    assert evaluator.received == [str(i) for i in range(100)]
    assert {receipt.waits for receipt in receipts} == {None}
    assert {receipt.report for receipt in receipts} == {None}
    assert len(evaluator.streams) == 1


async def test_an_idle_stream_is_finished_and_opened_again(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator, idle_s=0.02) as (relay, outbox):
        await relay.submit(_observation("a"))
        await until(lambda: outbox.size == 0)
        await until(lambda: bool(evaluator.streams) and all(stream.dead for stream in evaluator.streams))
        before = len(evaluator.streams)
        await asyncio.sleep(0.1)
        assert len(evaluator.streams) == before
        await relay.submit(_observation("b"))
        await until(lambda: outbox.size == 0)
    assert evaluator.stored == {"a": 1, "b": 1}


async def test_a_stream_that_breaks_loses_nothing(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.breaks_after = 7
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        await asyncio.gather(*(relay.submit(_observation(str(i))) for i in range(30)))
        await until(lambda: outbox.size == 0)
    assert sorted(evaluator.stored, key=int) == [str(i) for i in range(30)]
    assert len(evaluator.streams) == 2


async def test_observations_wait_for_an_absent_evaluator_and_survive_a_restart(tmp_path: Path) -> None:
    away = FakeEvaluator()
    away.error = Unavailable("UPSTREAM_UNAVAILABLE", "away")
    async with _relay(tmp_path, away) as (relay, outbox):
        await relay.submit(_observation("a"))
        await until(lambda: len(away.streams) >= 2)  # tried, and tried again
        receipt = await relay.submit(_observation("b"))
        assert receipt.waits == "UPSTREAM_UNAVAILABLE"
        assert outbox.size == 2

    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        await until(lambda: outbox.size == 0)
    assert evaluator.received == ["a", "b"]


async def test_a_lost_connection_is_reported_and_its_return_is_used_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # After a failure, nothing but the return of the connection ends the pause.
    for pause in ("_MIN_PAUSE_S", "_MAX_PAUSE_S"):
        monkeypatch.setattr(relay_module, pause, 3600.0)
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        evaluator.on_change(False)
        evaluator.error = Unavailable("UPSTREAM_UNAVAILABLE", "away")
        assert (await relay.submit(_observation("a"))).waits == "UPSTREAM_UNAVAILABLE"
        await until(lambda: "cannot be delivered" in caplog.text)  # the pause has begun
        evaluator.error = None
        evaluator.on_change(True)
        assert (await relay.submit(_observation("b"))).waits is None
        await until(lambda: outbox.size == 0)


async def test_a_full_store_is_reported_by_its_failure(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.error = Unavailable("STORE_FULL", "the disk is full")
    async with _relay(tmp_path, evaluator) as (relay, _):
        await relay.submit(_observation("a"))
        await until(lambda: len(evaluator.streams) >= 2)
        assert (await relay.submit(_observation("b"))).waits == "UPSTREAM_UNAVAILABLE"


async def test_what_the_evaluator_refuses_is_refused_once_and_stops_nobody(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.refuses = {"1"}
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        for i in range(3):
            await relay.submit(_observation(str(i)))
        await until(lambda: outbox.size == 0)
    assert evaluator.stored == {"0": 1, "2": 1}
    assert evaluator.received == ["0", "1", "2"]


async def _result(report: Awaitable[RunReport] | None) -> str:
    assert report is not None
    async with asyncio.timeout(20):
        return (await report).run_id


async def test_a_report_comes_with_its_observation(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, _):
        receipts = [await relay.submit(_observation(str(i), want_report=i == 1)) for i in range(3)]
        assert await _result(receipts[1].report) == "report after 1"


async def test_nobody_waits_for_a_report_from_an_absent_evaluator(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, _):
        evaluator.on_change(False)
        receipt = await relay.submit(_observation("a", want_report=True))
        with pytest.raises(Unavailable):
            await _result(receipt.report)


async def test_waiting_for_a_report_ends_when_the_evaluator_goes(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.refuses = {"b"}
    async with _relay(tmp_path, evaluator) as (relay, _):
        refused = await relay.submit(_observation("b", want_report=True))
        with pytest.raises(InvalidField):
            await _result(refused.report)
        evaluator.breaks_after = 1
        broken = await relay.submit(_observation("c", want_report=True))
        with pytest.raises(Unavailable):
            await _result(broken.report)
        await until(lambda: "c" in evaluator.stored)


async def test_an_observation_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=1, tenant_share=1.0)
    evaluator = FakeEvaluator()
    evaluator.error = Unavailable("UPSTREAM_UNAVAILABLE", "away")
    relay = OutboxRelay(outbox, evaluator, lambda one: one.ask.id.encode())
    await relay.start()
    try:
        await relay.submit(_observation("a"))
        with pytest.raises(Unavailable) as caught:
            await relay.submit(_observation("b"))
        assert caught.value.reason == "OUTBOX_FULL"
    finally:
        await relay.stop()


async def test_with_nothing_to_bring_no_stream_is_opened(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator):
        await asyncio.sleep(0.05)
    assert evaluator.streams == []


async def _submitted(relay: OutboxRelay, tenant: str, observation: Observation) -> Receipt:
    """Submits as the call of a tenant does: in a task of its own."""

    async def call() -> Receipt:
        callers.enter(Caller("someone", tenant, frozenset()))
        return await relay.submit(observation)

    return await asyncio.create_task(call())


async def test_what_a_tenant_observes_arrives_as_its_own_however_late(tmp_path: Path) -> None:
    away = FakeEvaluator()
    away.error = Unavailable("UPSTREAM_UNAVAILABLE", "gone")
    async with _relay(tmp_path, away) as (relay, outbox):
        for tenant, name in (("acme", "a"), ("default", "a"), ("other", "b"), ("acme", "c"), ("acme", "a")):
            await _submitted(relay, tenant, _observation(name))
        await until(lambda: len({stream.tenant for stream in away.streams}) == 3)
        assert outbox.size == 4
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, outbox):  # after a restart, with nobody calling
        await until(lambda: outbox.size == 0)
        receipt = await _submitted(relay, "acme", _observation("d", want_report=True))
        assert receipt.report is not None
        assert (await receipt.report).run_id == "report after d"
    assert evaluator.tenants == {"acme": ["a", "c", "d"], "default": ["a"], "other": ["b"]}
    assert {stream.tenant for stream in evaluator.streams} == {"acme", "default", "other"}


async def test_what_the_evaluator_fails_at_every_time_does_not_stop_what_is_behind_it(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.fails_at = "poison"
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        for name in ("before", "poison", "behind"):
            await relay.submit(_observation(name))
        await until(lambda: "behind" in evaluator.stored and outbox.size == 0)
        assert evaluator.received.count("poison") == 5
    assert evaluator.stored == {"before": 1, "behind": 1}


async def test_what_another_process_left_is_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenmesh_orchestrator.observations.relay._SCAN_S", 0.02)
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (_, __):
        other = Outbox(tmp_path / "outbox.db", capacity=10)
        await other.open()
        await other.append("acme", "left", b"left")
        await other.close()
        await until(lambda: evaluator.tenants.get("acme") == ["left"])


async def test_an_entry_that_ends_the_evaluator_is_set_aside_and_stops_nobody(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.fails_at, evaluator.failure = "poison", Unanswered("UPSTREAM_UNAVAILABLE", "gone")
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        for name in ("before", "poison", "behind"):
            await _submitted(relay, "acme", _observation(name))
        await _submitted(relay, "other", _observation("theirs"))
        await until(lambda: outbox.size == 0)
    assert evaluator.stored == {"before": 1, "behind": 1, "theirs": 1}
    assert evaluator.received.count("poison") == 5


async def test_attempts_that_ended_the_evaluator_count_after_a_restart(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.fails_at, evaluator.failure = "poison", Unanswered("UPSTREAM_UNAVAILABLE", "gone")
    async with _relay(tmp_path, evaluator) as (relay, _):
        await relay.submit(_observation("poison"))
        await until(lambda: len(evaluator.received) >= 3)
    async with _relay(tmp_path, evaluator) as (_, outbox):
        await until(lambda: len(evaluator.received) >= 4 and outbox.size == 0)
    assert 5 <= len(evaluator.received) <= 6  # one may have been withdrawn when the first relay stopped


async def test_an_outage_sets_nothing_aside(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.fails_at, evaluator.failure = "a", Unanswered("UPSTREAM_UNAVAILABLE", "gone")
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        evaluator.serves = False
        await relay.submit(_observation("a"))
        await until(lambda: bool(evaluator.received))
        await asyncio.sleep(1.0)  # several pauses
        assert (evaluator.received, outbox.size) == (["a"], 1)
        evaluator.fails_at, evaluator.serves = "", True
        await until(lambda: outbox.size == 0)
    assert evaluator.stored == {"a": 1}


async def test_a_stream_that_breaks_while_an_attempt_is_written_counts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = FakeEvaluator()
    begun = 0
    seen: list[int] = []
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        begin = outbox.begin

        async def late(sequences: Sequence[int]) -> None:
            nonlocal begun
            begun += 1
            if begun <= 3:
                evaluator.streams[-1].fail(Unavailable("SHUTTING_DOWN", "later"))
                await asyncio.sleep(0.01)
            seen.append((await outbox.waiting(DEFAULT_TENANT, after=0, limit=1))[0].attempts)
            await begin(sequences)

        monkeypatch.setattr(outbox, "begin", late)
        await relay.submit(_observation("a"))
        await until(lambda: outbox.size == 0)
    assert evaluator.stored == {"a": 1}
    assert seen == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "OBSERVATION_TOO_LARGE", "never"), True),
        (MeshError(grpc.StatusCode.FAILED_PRECONDITION, "NO", "never"), True),
        (InvalidField("id", "never"), True),
        (MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL", "the disk is full"), False),
        (MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "later", retry_after_s=0.05), False),
    ],
)
async def test_a_final_status_sets_the_entry_aside_at_once(
    tmp_path: Path, error: MeshError, final: bool
) -> None:
    evaluator = FakeEvaluator()
    evaluator.fails_at, evaluator.failure = "never", error
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        for name in ("never", "behind"):
            await relay.submit(_observation(name))
        if final:
            await until(lambda: outbox.size == 0)
            assert evaluator.received.count("never") == 2  # among others, then alone
            assert evaluator.stored == {"behind": 1}
        else:
            await until(lambda: evaluator.received.count("never") >= 3)
            assert outbox.size == 2


async def test_an_observation_larger_than_the_evaluator_accepts_is_not_stored(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.max_message_bytes = 100
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        with pytest.raises(MeshError, match="accepts 36"):
            await relay.submit(_observation("a" * 37))
        assert outbox.size == 0


async def test_a_planned_stop_waits_for_an_evaluator_that_comes_back(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.error = Unavailable("UPSTREAM_UNAVAILABLE", "gone")
    async with _relay(tmp_path, evaluator) as (relay, outbox):
        await relay.submit(_observation("a"))
        await until(lambda: bool(evaluator.streams))
        draining = asyncio.create_task(relay.drain(60))
        await asyncio.sleep(0.1)
        assert not draining.done()
        evaluator.error = None
        evaluator.on_change(True)
        assert await draining == 0
        assert (evaluator.stored, outbox.size) == ({"a": 1}, 0)


async def test_a_planned_stop_ends_in_time_and_the_next_process_brings_what_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = FakeEvaluator()
    evaluator.error = Unavailable("UPSTREAM_UNAVAILABLE", "gone")
    async with _relay(tmp_path, evaluator) as (relay, _):
        for name in ("a", "b"):
            await relay.submit(_observation(name))
        assert await relay.drain(0.1) == 2
    assert "observations stay in the outbox" in caplog.text
    evaluator.error = None
    async with _relay(tmp_path, evaluator) as (relay, _):
        assert await relay.drain(60) == 0
    assert set(evaluator.stored) == {"a", "b"}


async def test_a_planned_stop_delivers_what_another_process_left(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=10)
    await outbox.open()
    evaluator = FakeEvaluator()
    async with _relay(tmp_path, evaluator) as (relay, _):
        await asyncio.sleep(0.05)  # the relay has looked, and looks again only in 15 s
        await outbox.append("default", "a", b"a")
        await outbox.close()
        assert await relay.drain(60) == 0
    assert evaluator.stored == {"a": 1}
