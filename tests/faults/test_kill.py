"""``kill -9`` of any one service while questions are being asked.

What must hold, whichever service dies: the others live on; every ask completes, degrades by name, or fails
with UNAVAILABLE (or with the deadline, if the service stays away too long); the service is back; and every
observation that was acknowledged is in the evaluator's store exactly once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from evenmesh import Addresses, AsyncClient, Client, Degraded, Done, MeshError
from evenmesh.local_mesh import read_running
from evenmesh_mesh import MeshSettings, stop
from evenmesh_studies import demo
from tests.support.detached_mesh import launch_for_tests

pytestmark = [pytest.mark.mesh, pytest.mark.faults, pytest.mark.timeout(240)]

ASKERS = 3
PAUSE_S = 0.5
"""Between two asks of one asker while what was killed starts, which needs the processors. Seconds."""
DEPTH = 3
"""Passages that an ask has ranked, of which two are shown: the cross-encoder takes most of an ask's time."""
BEFORE_S = 1.0
AFTER = 10
RECOVERY_S = 90.0
QUESTIONS = [question.question for question in demo.questions()[:20]]

# What may happen to an ask while a service is away; each is reported by name.
ALLOWED_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
# A reranker that is cut at its budget is polite too: on a busy machine that happens whoever was killed.
MAY_DEGRADE = {"generator": {"rerank", "generate"}, "evaluator": {"rerank", "observe"}}


@dataclass
class Outcomes:
    """What became of every ask of one run."""

    pause_s: float = 0.0
    started: int = 0
    done: list[str] = field(default_factory=list)
    dropped: int = 0
    degraded: Counter[str] = field(default_factory=Counter)
    failed: Counter[grpc.StatusCode] = field(default_factory=Counter)
    untyped: list[BaseException] = field(default_factory=list)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real mesh of five processes on free ports, with sixty passages of the demo corpus."""
    home = tmp_path_factory.mktemp("home")
    launch_for_tests(
        MeshSettings(home=home, port=0, backoff_s=0.2, environment={"EVENMESH_RETRIEVER_ENCODER": ""})
    )
    try:
        with Client(Addresses.find(home), timeout=30) as client:
            client.ingest(demo.passages()[:60], "demo")
        yield home
    finally:
        stop(home)


@asynccontextmanager
async def _asking(client: AsyncClient, run_id: str, outcomes: Outcomes) -> AsyncIterator[None]:
    """Keeps asking, a few at a time, until the block ends; then waits for the asks under way."""
    ended = asyncio.Event()

    async def ask_on(asker: int) -> None:
        turn = 0
        while not ended.is_set():
            turn += 1
            outcomes.started += 1
            try:
                async for event in client.ask(
                    QUESTIONS[(asker + turn) % len(QUESTIONS)],
                    depth=DEPTH,
                    k=2,
                    run_id=run_id,
                    query_id=f"{asker}-{turn}",
                    timeout=20,
                ):
                    if isinstance(event, Degraded):
                        outcomes.degraded[event.stage] += 1
                        outcomes.dropped += event.action == "observation_dropped"
                    elif isinstance(event, Done):
                        outcomes.done.append(event.ask_id)
            except MeshError as error:
                outcomes.failed[error.code] += 1
                await asyncio.sleep(0.05)  # a client that is refused does not hammer
            except BaseException as error:
                outcomes.untyped.append(error)
                raise
            await asyncio.sleep(outcomes.pause_s)

    askers = [asyncio.create_task(ask_on(asker)) for asker in range(ASKERS)]
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(*askers)


async def _serving_again(client: AsyncClient, home: Path, service: str, killed: int) -> None:
    """Waits until another process of the service serves."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            state = read_running(home)
            assert state is not None, "the supervisor is gone"
            pid = state.services[service].pid
            health = {one.service: one.health for one in await client.status()}
            if pid not in (None, killed) and set(health.values()) == {"serving"}:
                return
            await asyncio.sleep(0.2)


async def _observed(client: AsyncClient, run_id: str, at_least: int) -> int:
    """Observations of the run, once the outbox has had its time."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                count = (await client.report(run_id)).num_observations
            except MeshError as error:
                # Not there yet: the run's first observation, or the evaluator itself.
                if error.code not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                    raise
                count = 0
            if count >= at_least:
                return count
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("service", ["retriever", "reranker", "generator", "evaluator", "orchestrator"])
async def test_kill_one_service(home: Path, service: str) -> None:
    run_id = f"kill-{service}"
    outcomes = Outcomes()
    before = read_running(home)
    assert before is not None
    killed = before.services[service].pid
    assert killed is not None

    async with AsyncClient(Addresses.find(home), timeout=30) as client:
        async with _asking(client, run_id, outcomes):
            await asyncio.sleep(BEFORE_S)
            os.kill(killed, signal.SIGKILL)
            outcomes.pause_s = PAUSE_S
            await _serving_again(client, home, service, killed)
            back = len(outcomes.done)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECOVERY_S):
                    while len(outcomes.done) < back + AFTER:
                        await asyncio.sleep(0.2)
        observed = await _observed(client, run_id, len(outcomes.done) - outcomes.dropped)

    after = read_running(home)
    assert after is not None
    others = {name for name in after.services if name != service}
    assert {name: after.services[name].pid for name in others} == {
        name: before.services[name].pid for name in others
    }, "another service died too"
    assert not outcomes.untyped
    assert set(outcomes.failed) <= ALLOWED_CODES, outcomes
    assert set(outcomes.degraded) <= MAY_DEGRADE.get(service, {"rerank"}), outcomes
    assert len(outcomes.done) >= back + AFTER, (
        f"too little was answered after the {service} was back: {outcomes}"
    )
    assert outcomes.dropped == 0
    # An ask cut off by the orchestrator's death may have been observed without its client being reported.
    assert observed <= outcomes.started, "an observation was stored twice"
    if service != "orchestrator":
        assert observed == len(outcomes.done) or outcomes.failed, outcomes


async def test_acknowledged_observations_survive_the_evaluator(home: Path) -> None:
    """Every ask of a run is in the report although the evaluator is killed between them."""
    run_id, asks = "survive", 12
    state = read_running(home)
    assert state is not None
    async with AsyncClient(Addresses.find(home), timeout=30) as client:
        for turn in range(asks):
            if turn == asks // 2:
                pid = state.services["evaluator"].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            await client.answer(
                QUESTIONS[turn],
                depth=10,
                k=2,
                reranker="none",
                run_id=run_id,
                query_id=f"q{turn}",
                timeout=20,
            )
        assert await _observed(client, run_id, asks) == asks
