"""Every service replaced by a new process, one after the other, while fifty questions are in flight.

What must hold: no ask fails. A successor listens on the same port once it can answer; then its predecessor is
asked to end, and drains. The retriever's waits for the folder of collections, which only one process may have.

Ten processes start, and on a machine that is busy with other things the retriever's successor takes longer than
retries last: so it runs where ``EVENMESH_ROLLING_ASKS`` says how many are in flight; 50 is the full size.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from evenmesh import Addresses, AsyncClient, Degraded, Done, MeshError
from evenmesh_studies import demo
from tests.faults.chaos.faults import SERVICES
from tests.faults.chaos.world import MODULES
from tests.support.killable import Killable

_WANTED = os.environ.get("EVENMESH_ROLLING_ASKS", "")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not _WANTED, reason="EVENMESH_ROLLING_ASKS=50 runs it, on a machine with time for it"),
]

IN_FLIGHT = int(_WANTED or "50")
QUESTIONS = [one.question for one in demo.questions()[:20]]


async def test_services_are_replaced_without_a_failed_ask(tmp_path: Path) -> None:
    services = {name: Killable(MODULES[name], name, tmp_path, SHARE_PORT="true") for name in SERVICES}
    services["retriever"].also(EVENMESH_RETRIEVER_ENCODER="")
    services["generator"].also(EVENMESH_GENERATOR_THREADS="1", EVENMESH_GENERATOR_DEVICE="cpu")
    services["orchestrator"].also(
        **{f"EVENMESH_ORCHESTRATOR_{name.upper()}_TARGET": one.address for name, one in services.items()}
    )
    services["reranker"].also(EVENMESH_RERANKER_GENERATOR_TARGET=services["generator"].address)
    done: list[str] = []
    degraded: Counter[str] = Counter()
    failed: list[str] = []
    ended = asyncio.Event()

    async def ask_on(client: AsyncClient, asker: int) -> None:
        turn = 0
        while not ended.is_set():
            turn += 1
            question = QUESTIONS[(asker + turn) % len(QUESTIONS)]
            try:
                async for event in client.ask(
                    question, reranker="none", depth=5, k=2, run_id="rolling", query_id=f"{asker}-{turn}"
                ):
                    if isinstance(event, Degraded):
                        degraded[f"{event.stage} {event.action} {event.reason}"] += 1
                    elif isinstance(event, Done):
                        done.append(event.ask_id)
            except MeshError as error:
                failed.append(f"{error.code.name} {error.reason}: {error}")

    try:
        await asyncio.gather(*(service.start() for service in services.values()))
        addresses = {name: service.address for name, service in services.items()}
        async with AsyncClient(Addresses(**addresses), timeout=60) as client:
            await client.ingest(demo.passages()[:60], "demo")
            asking = [asyncio.create_task(ask_on(client, asker)) for asker in range(IN_FLIGHT)]
            try:
                before = 0
                for name, service in services.items():
                    await service.replace(waits_for_end=name == "retriever")
                    assert len(done) > before, f"nothing was answered while the {name} was replaced"
                    before = len(done)
                while len(done) == before:
                    await asyncio.sleep(0.1)
            finally:
                ended.set()
                await asyncio.gather(*asking)
            await _all_observed(client, done)
    finally:
        for service in services.values():
            service.kill()
    sys.stderr.write(
        f"\n{IN_FLIGHT} in flight: {len(done)} asks, {len(failed)} failed, degraded: {dict(degraded)}\n"
    )
    assert not failed
    assert not any("dropped" in one for one in degraded)


async def _all_observed(client: AsyncClient, done: list[str]) -> None:
    """Waits until every ask is with the evaluator, also what the orchestrator's predecessor left."""
    async with asyncio.timeout(60):
        while True:
            observed = [one.observation_id async for one in client.measurements("rolling")]
            if set(done) <= set(observed):
                break
            await asyncio.sleep(0.5)
    assert max(Counter(observed).values()) == 1
