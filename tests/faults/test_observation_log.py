"""Observations through a log: the server of the log and the evaluator are killed, and each is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import Unavailable
from evenmesh_kit.storage.tenant_log import RedisLog
from evenmesh_orchestrator.observations.log import LogReceiver
from evenmesh_orchestrator.observations.outbox import Outbox
from evenmesh_orchestrator.observations.relay import OutboxRelay
from tests.faults.test_evaluator_replicas import SERVICE, _encoded
from tests.support.killable import Killable
from tests.support.redis_server import RedisServer, running
from tests.support.waiting import until
from tests.unit.orchestrator.test_relay import _observation as asked

STEP = 150
RUN = "killed"
"""The run of every observation that is sent here."""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that keeps everything on disk."""
    with running(durable=True) as server:
        yield server


@pytest.fixture
async def evaluator(server: RedisServer, tmp_path: Path) -> AsyncIterator[Killable]:
    """An evaluator that takes observations from the log."""
    evaluator = Killable("evenmesh_evaluator", "evaluator", tmp_path).also(
        EVENMESH_OBSERVATION_LOG=server.url
    )
    try:
        await evaluator.start()
        yield evaluator
    finally:
        evaluator.kill()


@asynccontextmanager
async def orchestrator(server: RedisServer, folder: Path) -> AsyncIterator[tuple[OutboxRelay, Outbox]]:
    """What an orchestrator has of the log."""
    log = RedisLog(server.url, "observations", max_entries=10_000, variable="LOG")
    outbox = Outbox(folder / "outbox.db", capacity=10_000)
    receiver = LogReceiver(log, max_message_bytes=2**24)
    relay = OutboxRelay(outbox, receiver, _encoded)
    await relay.start()
    try:
        yield relay, outbox
    finally:
        await relay.stop()
        await receiver.close()


async def stored(stub: Any, count: int) -> None:
    """Waits until the evaluator has so many of the run, and checks that it has no more."""

    async def observations() -> int:
        runs = await stub.ListRuns(pb.ListRunsRequest(), wait_for_ready=True)
        return sum(run.num_observations for run in runs.runs if run.run_id == RUN)

    async with asyncio.timeout(300):
        while await observations() < count:
            await asyncio.sleep(0.1)
    assert await observations() == count


async def test_each_is_stored_once_whatever_is_killed(
    server: RedisServer, evaluator: Killable, tmp_path: Path
) -> None:
    async with orchestrator(server, tmp_path) as (relay, outbox):

        async def ask(first: int) -> None:
            for number in range(first, first + STEP):
                await relay.submit(asked(f"k-{number}"))

        await ask(0)
        server.kill()  # the outbox keeps what is not acknowledged
        await ask(STEP)
        server.start()
        evaluator.kill()  # the log keeps what it has not stored
        await ask(2 * STEP)
        await until(lambda: not outbox.size, 300)
        await evaluator.start()
        async with connect(evaluator.address, service=SERVICE) as channel:
            stub = pb_grpc.EvaluatorServiceStub(channel)
            await stored(stub, 3 * STEP)
        log = RedisLog(server.url, "observations", max_entries=1, variable="LOG")
        async with asyncio.timeout(60):
            while await log.waiting():
                await asyncio.sleep(0.05)
        await log.close()
        await evaluator.stop()


async def test_no_report_follows_an_observation_in_the_log(server: RedisServer, tmp_path: Path) -> None:
    async with orchestrator(server, tmp_path) as (relay, _):
        receipt = await relay.submit(asked("k-0", want_report=True))
        assert receipt.report is not None
        with pytest.raises(Unavailable) as caught:
            await receipt.report
    assert caught.value.reason == "REPORT_LATER"
