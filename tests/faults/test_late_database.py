"""Evaluator and reranker wait for a PostgreSQL server that starts after them: real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.killable import Killable
from tests.support.postgres import Postgres


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server that has an address and does not run yet."""
    server = Postgres()
    try:
        yield server
    finally:
        server.end()


async def _health(address: str, service: str = "") -> int:
    """Return what a service says of itself, once it listens."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=300, wait_for_ready=True)
        return int(reply.status)


async def test_services_that_start_before_their_database_wait_for_it(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.url.replace("+asyncpg", "")
    services = [
        Killable("evenmesh_evaluator", "evaluator", tmp_path, DATABASE_URL=url),
        Killable(
            "evenmesh_reranker",
            "reranker",
            tmp_path,
            DATABASE_URL=url,
            CROSS_ENCODER="",
            DEFAULT_RERANKER="none",
        ),
    ]
    starting = [asyncio.create_task(one.start()) for one in services]
    try:
        async with asyncio.timeout(600):
            for one in services:
                assert await _health(one.address, "live") == health_pb2.HealthCheckResponse.SERVING
                while "waiting for the database" not in one.log.read_text():
                    await asyncio.sleep(0.1)
                assert await _health(one.address) == health_pb2.HealthCheckResponse.NOT_SERVING
            postgres.start()
            await asyncio.gather(*starting)  # both serve
            for one in services:
                await one.stop()
    finally:
        for task in starting:
            task.cancel()
        for one in services:
            one.kill()


async def test_a_service_that_waits_ends_when_it_is_asked_to(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.url.replace("+asyncpg", "")
    evaluator = Killable("evenmesh_evaluator", "evaluator", tmp_path, DATABASE_URL=url)
    starting = asyncio.create_task(evaluator.start())
    try:
        async with asyncio.timeout(300):
            await _health(evaluator.address)
            while "waiting for the database" not in evaluator.log.read_text():
                await asyncio.sleep(0.1)
            starting.cancel()
            await evaluator.stop()
    finally:
        starting.cancel()
        evaluator.kill()
