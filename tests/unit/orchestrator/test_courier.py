"""The courier over a real outbox and a scripted evaluator: nothing is lost, and trouble is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshkit.errors import Internal, InvalidField, MeshError, Unavailable
from meshkit.security import caller as callers
from meshkit.security.caller import Caller
from orchestrator.courier import Courier, Delivered, Outcome, Refused, RunReported
from orchestrator.domain import Contexts, Observation, Pool, Ranked
from orchestrator.outbox import Outbox
from orchestrator.ports import Receipt
from tests.unit.orchestrator.fakes import ask


class FakeLine:
    """A stream to the fake evaluator."""

    def __init__(self, evaluator: FakeEvaluator) -> None:
        self._evaluator = evaluator
        self._queue: asyncio.Queue[Outcome | MeshError | None] = asyncio.Queue()
        self.dead = False
        self.tenant = callers.current().tenant
        evaluator.lines.append(self)

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
            self.fail(Internal("0123456789abcdef"))
            return True
        if name in self._evaluator.refuses:
            self._queue.put_nowait(Refused(name, InvalidField("id", "never")))
            return True
        self._evaluator.stored.setdefault(name, 0)
        self._evaluator.stored[name] += 1
        self._queue.put_nowait(Delivered(name))
        if want_report:
            self._queue.put_nowait(RunReported(f"report after {name}"))
        return True

    def fail(self, error: MeshError) -> None:
        """Breaks the line."""
        self.dead = True
        self._queue.put_nowait(error)

    async def outcomes(self) -> AsyncIterator[Outcome]:
        if self._evaluator.error is not None:
            raise self._evaluator.error
        while (outcome := await self._queue.get()) is not None:
            if isinstance(outcome, MeshError):
                raise outcome
            yield outcome

    async def hang_up(self) -> None:
        self._queue.put_nowait(None)

    def cut(self) -> None:
        self.dead = True


class FakeEvaluator:
    """An evaluator that counts what it stores."""

    def __init__(self) -> None:
        self.lines: list[FakeLine] = []
        self.received: list[str] = []
        self.tenants: dict[str, list[str]] = {}
        self.stored: dict[str, int] = {}
        self.refuses: set[str] = set()
        self.error: MeshError | None = None
        self.breaks_after: int | None = None
        self.fails_at = ""
        self.on_change: Callable[[bool], None] = lambda _: None

    def call(self) -> FakeLine:
        return FakeLine(self)

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
async def _courier(
    path: Path, evaluator: FakeEvaluator, *, idle_s: float = 5.0
) -> AsyncIterator[tuple[Courier, Outbox]]:
    outbox = Outbox(path / "outbox.db", capacity=1000)
    courier = Courier(outbox, evaluator, lambda one: one.ask.id.encode(), idle_s=idle_s)
    await courier.start()
    await asyncio.sleep(0)
    try:
        yield courier, outbox
    finally:
        await courier.stop()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def test_what_is_posted_arrives_once_in_order_and_leaves_the_outbox(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (courier, outbox):
        receipts = [await courier.post(_observation(str(i))) for i in range(100)]
        await _until(lambda: outbox.size == 0)
    assert evaluator.received == [str(i) for i in range(100)]
    assert {receipt.waits for receipt in receipts} == {None}
    assert {receipt.report for receipt in receipts} == {None}
    assert len(evaluator.lines) == 1


async def test_a_line_that_has_nothing_to_say_is_hung_up_and_opened_again(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator, idle_s=0.02) as (courier, outbox):
        await courier.post(_observation("a"))
        await _until(lambda: outbox.size == 0)
        await _until(lambda: bool(evaluator.lines) and all(line.dead for line in evaluator.lines))
        before = len(evaluator.lines)
        await asyncio.sleep(0.1)
        assert len(evaluator.lines) == before
        await courier.post(_observation("b"))
        await _until(lambda: outbox.size == 0)
    assert evaluator.stored == {"a": 1, "b": 1}


async def test_a_line_that_breaks_loses_nothing(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.breaks_after = 7
    async with _courier(tmp_path, evaluator) as (courier, outbox):
        await asyncio.gather(*(courier.post(_observation(str(i))) for i in range(30)))
        await _until(lambda: outbox.size == 0)
    assert sorted(evaluator.stored, key=int) == [str(i) for i in range(30)]
    assert len(evaluator.lines) == 2


async def test_observations_wait_for_an_absent_evaluator_and_survive_a_restart(tmp_path: Path) -> None:
    away = FakeEvaluator()
    away.error = Unavailable("UPSTREAM_UNAVAILABLE", "away")
    async with _courier(tmp_path, away) as (courier, outbox):
        await courier.post(_observation("a"))
        await _until(lambda: len(away.lines) >= 2)  # tried, and tried again
        receipt = await courier.post(_observation("b"))
        assert receipt.waits == "UPSTREAM_UNAVAILABLE"
        assert outbox.size == 2

    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (courier, outbox):
        await _until(lambda: outbox.size == 0)
    assert evaluator.received == ["a", "b"]


async def test_a_lost_connection_is_told_and_its_return_is_used_at_once(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (courier, outbox):
        evaluator.on_change(False)
        evaluator.error = Unavailable("UPSTREAM_UNAVAILABLE", "away")
        assert (await courier.post(_observation("a"))).waits == "UPSTREAM_UNAVAILABLE"
        await _until(lambda: len(evaluator.lines) >= 5)  # the pause has grown beyond a second
        await asyncio.sleep(0.3)  # the fifth try has failed, and the pause after it has begun
        evaluator.error = None
        evaluator.on_change(True)
        assert (await courier.post(_observation("b"))).waits is None
        async with asyncio.timeout(1):
            await _until(lambda: outbox.size == 0)


async def test_a_store_that_is_full_is_told_by_its_failure(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.error = Unavailable("STORE_FULL", "the disk is full")
    async with _courier(tmp_path, evaluator) as (courier, _):
        await courier.post(_observation("a"))
        await _until(lambda: len(evaluator.lines) >= 2)
        assert (await courier.post(_observation("b"))).waits == "UPSTREAM_UNAVAILABLE"


async def test_what_the_evaluator_refuses_is_set_aside_and_stops_nobody(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.refuses = {"1"}
    async with _courier(tmp_path, evaluator) as (courier, outbox):
        for i in range(3):
            await courier.post(_observation(str(i)))
        await _until(lambda: outbox.size == 0)
    assert evaluator.stored == {"0": 1, "2": 1}
    assert evaluator.received == ["0", "1", "2"]


async def _result(report: Awaitable[object] | None) -> object:
    assert report is not None
    async with asyncio.timeout(20):
        return await report


async def test_a_report_comes_with_its_observation(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (courier, _):
        receipts = [await courier.post(_observation(str(i), want_report=i == 1)) for i in range(3)]
        assert await _result(receipts[1].report) == "report after 1"


async def test_nobody_waits_for_a_report_from_an_absent_evaluator(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (courier, _):
        evaluator.on_change(False)
        receipt = await courier.post(_observation("a", want_report=True))
        with pytest.raises(Unavailable):
            await _result(receipt.report)


async def test_waiting_for_a_report_ends_when_the_evaluator_goes(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.refuses = {"b"}
    async with _courier(tmp_path, evaluator) as (courier, _):
        refused = await courier.post(_observation("b", want_report=True))
        with pytest.raises(InvalidField):
            await _result(refused.report)
        evaluator.breaks_after = 1
        broken = await courier.post(_observation("c", want_report=True))
        with pytest.raises(Unavailable):
            await _result(broken.report)
        await _until(lambda: "c" in evaluator.stored)


async def test_an_observation_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", capacity=1)
    evaluator = FakeEvaluator()
    evaluator.error = Unavailable("UPSTREAM_UNAVAILABLE", "away")
    courier = Courier(outbox, evaluator, lambda one: one.ask.id.encode())
    await courier.start()
    try:
        await courier.post(_observation("a"))
        with pytest.raises(Unavailable) as caught:
            await courier.post(_observation("b"))
        assert caught.value.reason == "OUTBOX_FULL"
    finally:
        await courier.stop()


async def test_with_nothing_to_bring_no_line_is_opened(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator):
        await asyncio.sleep(0.05)
    assert evaluator.lines == []


async def _posted(courier: Courier, tenant: str, observation: Observation) -> Receipt:
    """Posts as the call of a tenant does: in a task of its own."""

    async def call() -> Receipt:
        callers.enter(Caller("someone", tenant, frozenset()))
        return await courier.post(observation)

    return await asyncio.create_task(call())


async def test_what_a_tenant_observes_arrives_as_its_own_however_late(tmp_path: Path) -> None:
    away = FakeEvaluator()
    away.error = Unavailable("UPSTREAM_UNAVAILABLE", "gone")
    async with _courier(tmp_path, away) as (courier, outbox):
        for tenant, name in (("acme", "a"), ("default", "a"), ("other", "b"), ("acme", "c"), ("acme", "a")):
            await _posted(courier, tenant, _observation(name))
        await _until(lambda: len({line.tenant for line in away.lines}) == 3)
        assert outbox.size == 4
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (courier, outbox):  # after a restart, with nobody calling
        await _until(lambda: outbox.size == 0)
        receipt = await _posted(courier, "acme", _observation("d", want_report=True))
        assert receipt.report is not None
        assert await receipt.report == "report after d"
    assert evaluator.tenants == {"acme": ["a", "c", "d"], "default": ["a"], "other": ["b"]}
    assert {line.tenant for line in evaluator.lines} == {"acme", "default", "other"}


async def test_what_the_evaluator_fails_at_every_time_does_not_stop_what_is_behind_it(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    evaluator.fails_at = "poison"
    async with _courier(tmp_path, evaluator) as (courier, outbox):
        for name in ("before", "poison", "behind"):
            await courier.post(_observation(name))
        await _until(lambda: "behind" in evaluator.stored and outbox.size == 0)
        assert evaluator.received.count("poison") == 3
    assert evaluator.stored == {"before": 1, "behind": 1}


async def test_what_another_process_left_is_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.courier._LOOK_S", 0.02)
    evaluator = FakeEvaluator()
    async with _courier(tmp_path, evaluator) as (_, __):
        other = Outbox(tmp_path / "outbox.db", capacity=10)
        await other.open()
        await other.append("acme", "left", b"left")
        await other.close()
        await _until(lambda: evaluator.tenants.get("acme") == ["left"])
