"""What an observation costs, part by part: processor time, which depends little on what else runs."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Final

import psutil
from sqlalchemy import make_url

from benchmarks.observe import messages
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.observations import codec
from evenmesh_evaluator.observations.scores import measure as measured
from evenmesh_kit.storage.tenant_log import LogEntry, RedisLog
from tests.support.postgres import Postgres
from tests.support.redis_server import RedisServer

HEADING: Final = "What an observation costs"
EVENTS: Final = 8_192
COMMITS: Final = (16, 512)
TOGETHER: Final = 64


def measure() -> dict[str, tuple[float, float]]:
    """Measure by part the processor time of an observation: ours and the server's. Milliseconds."""
    return asyncio.run(_measure())


def section(found: dict[str, tuple[float, float]]) -> str:
    """Return the section of the page."""
    from benchmarks import page

    rows = [
        {"": name, "our process": f"{own:.3f}", "the server": f"{its:.3f}"}
        for name, (own, its) in found.items()
    ]
    return f"""Processor time of an observation of 20 rankings of 5 from 100 candidates, with labels, over
{EVENTS:,} of them; milliseconds of a core. PostgreSQL and Redis are on this machine's disk, and every
write waits for it.

{page.table(rows)}"""


async def _measure() -> dict[str, tuple[float, float]]:
    payloads = [one.SerializeToString() for one in islice(messages(), EVENTS)]
    began = time.process_time()
    read = []
    for payload in payloads:
        observation = codec.observation(pb.Observation.FromString(payload), now_us=0)
        read.append((observation, measured(observation)))
    found = {"read and measure": (_each(time.process_time() - began), 0.0)}
    for commit in COMMITS:
        server = Postgres(durable=True)
        try:
            server.start()
            store = SqlObservationStore(make_url(server.url))
            await store.open()
            before = _cpu_s(server.pid), time.process_time()
            for first in range(0, EVENTS, commit):
                await store.append(read[first : first + commit])
            after = _cpu_s(server.pid), time.process_time()
            await store.close()
        finally:
            server.end()
        found[f"store in PostgreSQL, {commit} a commit"] = (
            _each(after[1] - before[1]),
            _each(after[0] - before[0]),
        )
    redis = RedisServer(durable=True)
    try:
        redis.start()
        log = RedisLog(redis.url, "bench", max_entries=2 * EVENTS, variable="")
        before = _cpu_s(redis.pid), time.process_time()
        for first in range(0, EVENTS, TOGETHER):
            await log.append("tenant", payloads[first : first + TOGETHER])
        middle = _cpu_s(redis.pid), time.process_time()
        taken: list[LogEntry] = []
        while len(taken) < EVENTS:
            entries = await log.read("one", count=TOGETHER, wait_s=1.0)
            await log.done(entries)
            taken += entries
        after = _cpu_s(redis.pid), time.process_time()
        await log.close()
    finally:
        redis.end()
    found[f"add to the log, {TOGETHER} at a time"] = (
        _each(middle[1] - before[1]),
        _each(middle[0] - before[0]),
    )
    found["take from the log"] = _each(after[1] - middle[1]), _each(after[0] - middle[0])
    return found


def _each(seconds: float) -> float:
    return 1e3 * seconds / EVENTS


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children so far. Seconds."""
    process = psutil.Process(pid)
    return float(sum(sum(one.cpu_times()[:2]) for one in [process, *process.children()]))
